"""Secrets that must not appear in what is recorded of a failure: the values layer."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

__all__ = ["MARK", "NO_SECRETS", "Redaction"]

MARK = "[secret]"
"""What stands in a text where a secret was."""

# A secret of a few characters is in every text; hiding it would only show that it is one.
SHORTEST = 4
SHORTEST_LINE = 16

_BASE64 = re.compile(r'"base64":\s*"([A-Za-z0-9+/=]*)"')


class Redaction:
    """Knows the secrets of a job, and takes them out of texts. Immutable; any thread. False if there are none.

    Found are a secret itself, as Python and JSON quote it, as a URL writes it, and each longer line of one of several
    lines. What is shorter than ``SHORTEST`` characters is not looked for.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values = tuple({secret for secret in secrets if len(secret) >= SHORTEST})
        forms = {form for secret in self._values for form in _forms(secret)}
        # The longest first, so that nothing is left of a secret that holds another one.
        pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._find = re.compile(pattern) if forms else None

    def __bool__(self) -> bool:
        return self._find is not None

    def text(self, text: str) -> str:
        """Return ``text`` with ``MARK`` in the place of every secret."""
        return text if self._find is None else self._find.sub(MARK, text)

    def is_in(self, value_text: str) -> bool:
        """Return whether a value text of the codec holds a secret, also within bytes."""
        if self._find is None:
            return False
        if self._find.search(value_text):
            return True
        held = (base64.b64decode(found) for found in _BASE64.findall(value_text))
        return any(self._find.search(content.decode(errors="replace")) for content in held)

    def __repr__(self) -> str:
        return f"Redaction({len(self._values)} secrets)"


def _forms(secret: str) -> Iterator[str]:
    lines = [line for line in secret.splitlines() if len(line) >= SHORTEST_LINE]
    for plain in (secret, *lines):
        quoted = (repr(plain), ascii(plain), json.dumps(plain), json.dumps(plain, ensure_ascii=False))
        yield plain
        yield from (text[1:-1] for text in quoted)
        yield from (quote(plain, safe="", errors="replace"), quote(plain, errors="replace"))
        yield quote_plus(plain, errors="replace")


NO_SECRETS = Redaction()
"""The redaction of a job without secrets."""
