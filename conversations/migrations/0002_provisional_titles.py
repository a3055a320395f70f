from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0001_initial")]

    operations = [
        migrations.AlterModelOptions(
            name="conversation",
            options={"permissions": [("view_content", "Can read what people write")]},
        ),
        migrations.AddField(
            model_name="conversation",
            name="title_is_provisional",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddIndex(
            model_name="conversation",
            index=models.Index(
                condition=models.Q(("title_is_provisional", True)),
                fields=["updated_at"],
                name="conversation_provisional",
            ),
        ),
    ]
