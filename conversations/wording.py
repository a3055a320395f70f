"""What the pages say about states and endings; the scripts get theirs from here, too, so that all are translated."""

import datetime
from decimal import Decimal

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing.limits import Window, WindowState
from inference.abandonment import ABANDONED
from inference.protocol import FinishReason


def ending(reason: FinishReason | str | None, code: str = "") -> str:
    """One quiet line for endings other than `stop`."""
    if reason == "cancelled" and code == ABANDONED:
        return _("Stopped: nobody was reading")
    return {
        "length": _("Length limit reached"),
        "cancelled": _("Stopped by you"),
        "limit_reached": _("Your tokens are used up"),
        "content_filter": _("Withheld by the content filter"),
        "error": _("The answer broke off."),
    }.get(reason or "", "")


def instead(model: str, asked: str) -> str:
    """The line of an answer that another model gives."""
    return _("Answered by {model}, because {asked} is busy.").format(model=model, asked=asked)


def cut_by_limit(renews_at: datetime.datetime | None, now: datetime.datetime) -> str:
    """The line for an answer that a limit cut short: a window's, which renews, or the plan's for one answer (None)."""
    if renews_at is None:
        return _("Your plan's longest answer is reached")
    if renews_at <= now:
        return _("Your tokens were used up")
    return _("Your tokens are used up · renews %(when)s") % {"when": clock(renews_at, now)}


def clock(moment: datetime.datetime, now: datetime.datetime) -> str:
    """A near time in the reader's zone: 18:40 today, the day beside it on others; the next whole minute, for there is
    more from then on. limits.js has the same."""
    there = timezone.localtime(moment + datetime.timedelta(minutes=1, microseconds=-1))
    time = date_format(there, "H:i")
    if there.date() == timezone.localtime(now).date():
        return time
    return _("%(date)s, %(time)s") % {"date": date_format(there, "MONTH_DAY_FORMAT"), "time": time}


def span(length: int) -> str:
    """A window's length in seconds: 3 hours, a day."""
    units = (
        (604_800, ngettext("a week", "%(n)s weeks", length // 604_800)),
        (86_400, ngettext("a day", "%(n)s days", length // 86_400)),
        (3600, ngettext("an hour", "%(n)s hours", length // 3600)),
        (60, ngettext("a minute", "%(n)s minutes", length // 60)),
        (1, ngettext("a second", "%(n)s seconds", length)),
    )
    unit, words = next((unit, words) for unit, words in units if length % unit == 0)
    return words % {"n": number(length // unit)}


def window_name(window: Window) -> str:
    """What a limit counts, in how long a time, and whose it is."""
    kinds = {"requests": _("Messages in %(span)s"), "tokens": _("Tokens in %(span)s")}
    name = kinds[window.kind] % {"span": span(window.seconds)}
    return name if window.holder == "user" else _("%(name)s, all of your organization") % {"name": name}


def renewal(state: WindowState, now: datetime.datetime) -> str:
    """When there is more of a window again; empty while nothing is used."""
    if not state.used:
        return ""
    some, whole = (clock(now + datetime.timedelta(seconds=wait), now) for wait in (state.next_s, state.full_s))
    if some == whole:
        return _("All of it is back from %(when)s.") % {"when": whole}
    return _("More from %(some)s, all of it from %(all)s.") % {"some": some, "all": whole}


def seconds(duration: datetime.timedelta) -> str:
    """How long something took."""
    value = max(0.0, duration.total_seconds())
    return _("%(seconds)s s") % {"seconds": number_format(value, 1 if value < 100 else 0)}


def number(value: int) -> str:
    """With thousands apart."""
    return number_format(value, force_grouping=True)


def money(micro: int) -> str:
    """An amount with its currency: whole hundredths with two digits after the point, others with all six."""
    amount = Decimal(micro) / 1_000_000
    digits = 6 if micro % 10_000 else 2
    return f"{number_format(amount, digits, force_grouping=True)}\N{NO-BREAK SPACE}{settings.CURRENCY}"


def for_scripts() -> dict[str, str]:
    """By key; {names} in braces are filled in by the scripts."""
    return {
        "queued": _("Waiting for a free place"),
        "queued_at": _("Waiting for a free place · {place} in line"),
        "queued_eta": _("Waiting for a free place · {place} in line · about {seconds} s"),
        "places": _("first,second,third,fourth,fifth,sixth,seventh,eighth,ninth,tenth"),
        "place_number": _("number {number}"),
        "starting": _("The model is starting · usually 20 s"),
        "no_worker": _("No model is running yet. Your message waits."),
        "thinking": _("Thinking"),
        "instead": _("Answered by {model}, because {asked} is busy."),
        "moved": _("Continuing on another server…"),
        "offline": _("You are offline. What you type is kept."),
        "reconnecting": _("Connection lost. Trying again…"),
        "logged_out": _("You are logged out."),
        "log_in": _("Log in"),
        "gone": _("This chat was deleted."),
        "complete": _("Answer complete"),
        "stopped": _("Answer stopped"),
        "failed": _("The answer broke off."),
        "sent": _("Message sent"),
        "retry": _("Try again"),
        "not_sent": _("The message could not be sent: no connection."),
        "busy": _("An answer is still being written here. Stop it, or wait for its end."),
        "wait": _("Too many requests. Try again in {seconds} s."),
        "unavailable": _("The site is busy. Try again in a moment."),
        "failed_request": _("That did not work. Try again."),
        "copied": _("Copied"),
        "copy": _("Copy"),
        "copy_code": _("Copy code"),
        "code": _("Code"),
        "table": _("Table"),
        "not_copied": _("The browser did not allow copying."),
        "continue": _("Continue"),
        "new_title": _("New chat"),
        "too_long": _("Your message has {tokens} tokens, and at most {limit} fit. Shorten it."),
        "cut": _("Your tokens are used up"),
        "limit_requests": _("You have used all {amount} messages for {span}."),
        "limit_tokens": _("You have used all {amount} tokens for {span}."),
        "limit_few": _("Of your {amount} tokens for {span} {left} are left: too few for this."),
        "limit_small": _("This is more than your {amount} tokens for {span} ever allow."),
        "together_requests": _("Your organization has used all {amount} messages for {span}."),
        "together_tokens": _("Your organization has used all {amount} tokens for {span}."),
        "together_few": _("Of your organization's {amount} tokens for {span} {left} are left: too few for this."),
        "together_small": _("This is more than your organization's {amount} tokens for {span} ever allow."),
        "renews_at": _("More from {time}."),
        "date_time": _("{date}, {time}"),
        "next_plan": _("{plan} gives {amount}."),
        "next_plan_any": _("{plan} has no such limit."),
        "see_usage": _("See your usage"),
        "upgrade": _("Get more"),
    }
