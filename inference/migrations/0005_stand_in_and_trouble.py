"""Which busy model a generation was asked of; an index of those that failed or moved."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0004_request_id'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='generation',
            name='instead_of',
            field=models.CharField(blank=True, db_default='', default='', help_text='The model asked for, if it was too busy.', max_length=128),
        ),
        migrations.AddIndex(
            model_name='generation',
            index=models.Index(condition=models.Q(('status', 'FAILED'), ('attempt__gt', 1), _connector='OR'), fields=['finished_at'], name='generation_troubled'),
        ),
    ]
