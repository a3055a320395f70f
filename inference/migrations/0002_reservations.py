"""What was reserved, when, and in which epoch of the counters, which a trigger checks."""

from decimal import Decimal
from django.db import migrations, models


# The number is billing.counters.EPOCH_LOCK: beginning an epoch takes the lock alone, and so waits for these inserts.
REFUSE_PAST_EPOCHS = """
CREATE FUNCTION inference_refuse_past_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305811092);
    IF NEW.epoch <> (SELECT last_value FROM billing_limit_epoch) THEN
        RAISE EXCEPTION 'the counters lost this reservation'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER inference_refuse_past_epoch BEFORE INSERT ON inference_generation
    FOR EACH ROW WHEN (NEW.epoch IS NOT NULL) EXECUTE FUNCTION inference_refuse_past_epoch();
"""
TAKE_ALL = """
DROP TRIGGER inference_refuse_past_epoch ON inference_generation;
DROP FUNCTION inference_refuse_past_epoch();
"""


class Migration(migrations.Migration):

    dependencies = [
        ("billing", "0006_ledger"),
        ('inference', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='generation',
            name='admitted_at',
            field=models.DateTimeField(help_text="When it was reserved, by the counters' clock.", null=True),
        ),
        migrations.AddField(
            model_name='generation',
            name='epoch',
            field=models.BigIntegerField(help_text='Of the counters: a row of an earlier one is refused.', null=True),
        ),
        migrations.AddField(
            model_name='generation',
            name='price_multiplier',
            field=models.DecimalField(decimal_places=4, default=Decimal('1'), max_digits=8),
        ),
        migrations.AddField(
            model_name='generation',
            name='renews_at',
            field=models.DateTimeField(help_text='When the limit that made the grant smaller renews.', null=True),
        ),
        migrations.RunSQL(REFUSE_PAST_EPOCHS, TAKE_ALL),
    ]
