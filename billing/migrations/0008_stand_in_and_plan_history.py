"""A plan may name a model that stands in for busy ones; the history of plans is whole and append-only."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


APPEND_ONLY = """
CREATE FUNCTION billing_plan_history_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the history of plans is append-only' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER billing_plan_history_append_only BEFORE UPDATE OR DELETE ON billing_planchange
    FOR EACH ROW EXECUTE FUNCTION billing_plan_history_append_only();
"""
NOT_APPEND_ONLY = """
DROP TRIGGER billing_plan_history_append_only ON billing_planchange;
DROP FUNCTION billing_plan_history_append_only();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0007_owners_and_offers'),
        ('inference', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='plan',
            name='stand_in',
            field=models.ForeignKey(blank=True, help_text='A smaller model that answers while the one asked for is too busy, and says so; empty: none.', limit_choices_to={'is_enabled': True}, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='stands_in_for', to='inference.servedmodel'),
        ),
        migrations.AddField(
            model_name='plan',
            name='stand_in_after_s',
            field=models.FloatField(default=10, help_text='Estimated seconds of waiting from which on a model is too busy; without workers it always is.', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(86400.0)]),
        ),
        migrations.AddField(
            model_name='planchange',
            name='before',
            field=models.CharField(blank=True, default='', help_text='Slug of the plan that held before.', max_length=64),
        ),
        migrations.AddField(
            model_name='planchange',
            name='organization_id',
            field=models.UUIDField(null=True),
        ),
        migrations.AlterField(
            model_name='planchange',
            name='plan',
            field=models.CharField(blank=True, help_text="The plan's slug; empty: none of their own, or no override, any more.", max_length=64),
        ),
        migrations.AlterField(
            model_name='planchange',
            name='user_id',
            field=models.UUIDField(null=True),
        ),
        migrations.AddIndex(
            model_name='planchange',
            index=models.Index(fields=['organization_id', 'created_at'], name='planchange_organization'),
        ),
        migrations.AddConstraint(
            model_name='plan',
            constraint=models.CheckConstraint(condition=models.Q(('stand_in_after_s__gte', 0), ('stand_in_after_s__lte', 86400)), name='plan_stand_in_after'),
        ),
        migrations.AddConstraint(
            model_name='planchange',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('organization_id__isnull', False), ('user_id__isnull', True)), models.Q(('organization_id__isnull', True), ('user_id__isnull', False)), _connector='OR'), name='planchange_of_one'),
        ),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
    ]
