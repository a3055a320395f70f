"""Figures on the operator's pages; a dash where nothing is known."""

from django import template

from billing.limits import in_words

register = template.Library()


@register.filter
def seconds(value: float | None) -> str:
    """A time: 0.4 s, 12 s, 3 minutes."""
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s" if value < 90 else in_words(value)


@register.filter
def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{100 * value:.0f} %"


@register.filter
def figure(value: float | None) -> str:
    """A number with two digits behind the point."""
    return "–" if value is None else f"{value:.2f}"
