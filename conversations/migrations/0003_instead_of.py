"""Which busy model an answer was asked of."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('conversations', '0002_provisional_titles'),
    ]

    operations = [
        migrations.AddField(
            model_name='message',
            name='instead_of',
            field=models.CharField(blank=True, db_default='', default='', help_text='The model asked for, if it was too busy.', max_length=128),
        ),
    ]
