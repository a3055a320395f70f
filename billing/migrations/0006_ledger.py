"""Corrections and admission times in the ledger; it is append-only; epochs of the limit counters."""

from decimal import Decimal
from django.db import migrations, models


APPEND_ONLY = """
CREATE FUNCTION billing_ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: write a correction' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER billing_ledger_append_only BEFORE UPDATE OR DELETE ON billing_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION billing_ledger_append_only();
"""
NOT_APPEND_ONLY = """
DROP TRIGGER billing_ledger_append_only ON billing_ledgerentry;
DROP FUNCTION billing_ledger_append_only();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0005_shipped_windows'),
    ]

    operations = [
        migrations.AddField(
            model_name='ledgerentry',
            name='admitted_at',
            field=models.DateTimeField(help_text="Since when it counts in windows, by the counters' clock.", null=True),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='kind',
            field=models.CharField(choices=[('usage', 'Usage'), ('correction', 'Correction')], default='usage', max_length=16),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='note',
            field=models.CharField(blank=True, default='', help_text='Why it was corrected.', max_length=255),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='price_multiplier',
            field=models.DecimalField(decimal_places=4, default=Decimal('1'), max_digits=8),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='cached_tokens',
            field=models.IntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='completion_tokens',
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='generation_id',
            field=models.UUIDField(),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='prompt_tokens',
            field=models.IntegerField(),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['api_key_id', 'created_at'], name='ledgerentry_key'),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['created_at'], name='ledgerentry_time'),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['generation_id'], name='ledgerentry_generation'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.UniqueConstraint(condition=models.Q(('kind', 'usage')), fields=('generation_id',), name='ledgerentry_one_usage'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind', 'usage'), _negated=True), models.Q(('cached_tokens__gte', 0), ('completion_tokens__gte', 0), ('prompt_tokens__gte', 0)), _connector='OR'), name='ledgerentry_usage_not_negative'),
        ),
        migrations.RunSQL("CREATE SEQUENCE billing_limit_epoch", "DROP SEQUENCE billing_limit_epoch"),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
    ]
