"""What the pages say about states and endings; the scripts get theirs from here, too, so that all are translated."""

from django.utils.translation import gettext as _

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
    }
