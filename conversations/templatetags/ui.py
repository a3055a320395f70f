"""Template tags of every page: icons, the sidebar, the words that scripts say."""

import json
from functools import cache
from typing import Any

from django import template
from django.conf import settings
from django.template.context import Context
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from conversations import wording
from conversations.sidebar import page_of

register = template.Library()
ICONS = settings.BASE_DIR / "static" / "dist" / "icons.json"


@cache
def _icons() -> dict[str, str]:
    """Shapes by name, from the front-end's build; empty without one, so that tests of views need none."""
    try:
        found: dict[str, str] = json.loads(ICONS.read_text())
    except FileNotFoundError:
        return {}
    return found


@register.simple_tag
def icon(name: str) -> SafeString:
    """One Lucide icon as inline SVG. Decoration: the control around it carries the label."""
    return format_html(
        '<svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" '
        'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">{}</svg>',
        mark_safe(_icons().get(name, "")),  # noqa: S308  # our own build's
    )


@register.simple_tag
def words() -> dict[str, str]:
    """What the scripts say, in the reader's language."""
    return wording.for_scripts()


register.filter(wording.money)
register.filter(wording.number)
register.filter(wording.seconds)


@register.simple_tag
def upgrade_url() -> str:
    """Where people get a larger plan; empty: nowhere."""
    return str(settings.UPGRADE_URL)


@register.inclusion_tag("chat/_sidebar.html", takes_context=True)
def sidebar(context: Context) -> dict[str, Any]:
    """The frame's left side, with the first page of chats."""
    request = context["request"]
    return {
        "request": request,
        "user": request.user,
        "chats": page_of(request.user),
        "csrf_token": context.get("csrf_token"),
    }
