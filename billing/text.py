"""Text from outside: what can be stored and what cannot."""

from billing.errors import Refusal


def clean(text: str, param: str, *, longest: int | None = None) -> str:
    """`text` as it may be stored. Raises Refusal (invalid_text, text_too_long; 400) that names `param`.

    NUL and lone surrogates are refused rather than dropped: PostgreSQL stores neither, and a caller whose text is
    changed silently finds out late. `longest` is in characters.
    """
    if "\0" in text:
        raise Refusal("invalid_text", f"{param} contains a NUL character.", param=param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal("invalid_text", f"{param} contains half of a surrogate pair.", param=param) from None
    if longest is not None and len(text) > longest:
        raise Refusal("text_too_long", f"{param} has {len(text)} characters; the most is {longest}.", param=param)
    return text
