"""Find secrets in any text: by the names before them, by their form, and by where they stand.

Work grows with the length of the text only. No pattern repeats a repetition, every search goes on
where the last one ended, and what may fail after a long match is possessive or bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from perdure.telemetry.secret_names import SECRET_PHRASES, SECRET_WORDS, WEAK_WORDS, SecretNames

HIDDEN = "[redacted]"

_PROSE_WORDS = (
    "must|is|are|was|were|cannot|should|expected|has|have|had|may|not|no|the|an?|this|that|it|to"
    "|for|in|of|and|or|with|as|by|at|on|if|from"
)
_NOT_PROSE = rf"(?!(?:{_PROSE_WORDS})[,.]?\s)"
"""A message may go on after a secret name: `token: must be text`."""
_HEADER_NAMES = r"(?:authorization|cookie)\s{0,4}:\s{0,4}"
_SCHEMES = r"(?:bearer|basic|digest|negotiate|aws4-hmac-sha256)"
_HEADER = re.compile(
    rf"""(?P<open>["']?)(?P<name>[\w-]{{0,20}}{_HEADER_NAMES})(?!["'\s\[{{]){_NOT_PROSE}"""
    rf"""(?P<scheme>{_SCHEMES}\s{{1,4}})?(?P<rest>[^\r\n]++)""",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,4})([\w.~+/-]{8,}+={0,2})", re.IGNORECASE)
_PROSE = re.compile(r"[A-Za-z]?[a-z]{1,18}+(?:[_/-][a-z]{1,18}+)?[.=]?")
_FORMS = re.compile(
    r"\b(pk_[0-9a-f]{12}_|whsec_)[0-9A-Za-z+/=]{8,}+"
    r"|\b(?:gh[opsru]_|github_pat_|glpat-|xox[abeoprs]-|[rs]k_(?:live|test)_|sk-|AIza|npm_"
    r"|pypi-AgE|hf_|dop_v1_|ya29\.|hvs\.|shpat_|SG\.)(?=[\w-]{0,40}\d)[\w.-]{16,}+"
    r"|\beyJ[\w-]{8,}+\.[\w.-]{4,}+"
    r"|(hooks\.slack\.com/[a-z]{1,20}/|discord(?:app)?\.com/api/webhooks/)[\w/-]{8,}+"
)
_PRIVATE_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_PRIVATE_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
MAX_KEY_LINES = 500
_PEM_BODY = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\r\n\t\\ "
_USER_INFO = re.compile(
    r"""(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]{0,20}:/{2})(?P<user>[^\s/?#:@"'<>]{0,400}+)"""
    r"""(?:(?P<colon>:)(?!\d{1,5}[/?#])[^\s"'<>@]{0,500}+(?:@[^\s/"'<>@]{1,200}+(?=@)){0,3}@|@)""",
    re.IGNORECASE,
)
_QUERY = re.compile(r"""([?&;])([\w.~%\[\]-]{1,60}+)=([^&\s"'<>#;]++)""")
_SIGNATURE = re.compile(r"\b(signature=)([\w+/%=-]{16,}+)", re.IGNORECASE)
_USER_FLAG = re.compile(
    r"""(?<![\w-])(?P<user>(?:(?:-u|--user|--proxy-user)["']?(?:[ =,]\s{0,3})?"""
    r"""|(?:-[A-Za-z]{1,8}u|--auth)["']?[ =,]\s{0,3})(?P<open>["'])?"""
    r"""[^\s:"'/]{1,200}+:)(?!//)(?P<password>(?(open)[^"']++|[^\s"']++))"""
)
_USER_OPTION = re.compile(r"-[A-Za-z]{0,8}u|--user|--proxy-user|--auth")
_TOOL_FLAG = re.compile(
    r"""(?<!\w)(sshpass\s{1,4}-p\s{0,4}|redis-cli\b[^\r\n]{0,200}?\s-a\s{1,4}"""
    r"""|(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\r\n]{0,200}?\s-p"""
    r"""|login\b[^\r\n]{0,200}?\s-p\s{1,4}|-pass(?:in|out)?\s{1,4}["']?pass:"""
    r"""|configure\s{1,4}set\s{1,4}[\w.]{0,60}(?:secret|token)[\w.]{0,60}\s{1,4})(["']?[^\s"']++)"""
)
_IDENTIFIED = re.compile(r"\b(identified\s(?:with\s\S{1,60}+\s)?by\s{1,4})('[^']*+'?)", re.I)
_NO_PASSWORDS = (":@", ":x-oauth-basic@")
_NUMBERS = re.compile(r"\d{1,10}(?::\d{1,10})?")


class Rule(NamedTuple):
    """`redact` is called only for texts that contain one of `triggers`, in any case."""

    triggers: tuple[str, ...]
    redact: Callable[[str], str]


def make_rules(names: SecretNames) -> tuple[Rule, ...]:
    """Return the rules in the order in which they apply."""
    assignments = Assignments(names)

    def redact_parameter(match: re.Match[str]) -> str:
        is_secret = names.is_secret_parameter(match[2], match[3])
        return f"{match[1]}{match[2]}={HIDDEN}" if is_secret else match[0]

    return (
        Rule(("private key",), redact_private_keys),
        Rule(("authorization", "cookie"), lambda text: _HEADER.sub(_redact_header, text)),
        Rule(("bearer", "basic"), lambda text: _SCHEME.sub(_redact_scheme, text)),
        Rule(_FORM_TRIGGERS, lambda text: _FORMS.sub(_redact_form, text)),
        Rule(assignments.triggers, assignments.redact),
        Rule(("identified",), lambda text: _IDENTIFIED.sub(rf"\1{HIDDEN}", text)),
        Rule(("://",), lambda text: _USER_INFO.sub(_redact_user_info, text)),
        Rule(("=",), lambda text: _QUERY.sub(redact_parameter, text)),
        Rule(("signature=",), lambda text: _SIGNATURE.sub(rf"\1{HIDDEN}", text)),
        Rule(("-", ":"), lambda text: _USER_FLAG.sub(_redact_user_flag, text)),
        Rule(
            ("sshpass", "redis-cli", "mysql", "mariadb", "login", "pass:", "configure"),
            lambda text: _TOOL_FLAG.sub(rf"\1{HIDDEN}", text),
        ),
    )


_FORM_TRIGGERS = (
    *("pk_", "whsec_", "gho_", "ghp_", "ghs_", "ghr_", "ghu_", "github_pat_", "glpat-", "xox"),
    *("sk_", "rk_", "sk-", "aiza", "npm_", "pypi-", "hf_", "dop_", "ya29", "hvs.", "shpat_"),
    *("sg.", "eyj", "hooks.slack.com", "/api/webhooks/"),
)


def redact_private_keys(text: str) -> str:
    """Replace PEM private keys, also one of which the beginning or the end was cut off."""
    pieces: list[str] = []
    position = 0
    while begin := _PRIVATE_BEGIN.search(text, position):
        end = _PRIVATE_END.search(text, begin.end())
        pieces += (_without_cut_key(text[position : begin.start()]), HIDDEN)
        position = len(text) if end is None else end.end()
    return "".join((*pieces, _without_cut_key(text[position:])))


def _without_cut_key(text: str) -> str:
    """Replace the rest of a key of which the first line is missing."""
    end = _PRIVATE_END.search(text)
    if end is None:
        return text
    return f"{text[: end.start()].rstrip(_PEM_BODY)}{HIDDEN}{text[end.end() :]}"


class PrivateKeyLines:
    """Follows a text that arrives line by line, to know the lines of a private key."""

    def __init__(self) -> None:
        self._left = 0

    def is_inside(self, line: str) -> bool:
        """Whether the line belongs to a key that an earlier line began."""
        if begin := list(_PRIVATE_BEGIN.finditer(line)):
            is_open = _PRIVATE_END.search(line, begin[-1].end()) is None
            self._left = MAX_KEY_LINES if is_open else 0
            return False
        if not self._left:
            return False
        self._left = 0 if _PRIVATE_END.search(line) else self._left - 1
        return True


def _redact_header(match: re.Match[str]) -> str:
    """A quoted header ends with its quote, any other with its line."""
    quote, rest = match["open"], match["rest"]
    end = rest.find(quote) if quote else -1
    after = rest[end:] if end >= 0 else ""
    return f"{quote}{match['name']}{match['scheme'] or ''}{HIDDEN}{after}"


def _redact_scheme(match: re.Match[str]) -> str:
    """`Basic authentication` is prose."""
    return match[0] if _PROSE.fullmatch(match[3]) else f"{match[1]}{match[2]}{HIDDEN}"


def _redact_form(match: re.Match[str]) -> str:
    return f"{match[1] or match[2] or ''}{HIDDEN}"


def _redact_user_info(match: re.Match[str]) -> str:
    """A user name without a password is a token in a web address, and a name in any other."""
    is_web = match["scheme"].lower().endswith(("http://", "https://", "ws://", "wss://"))
    if match["colon"] and not (is_web and match[0].endswith(_NO_PASSWORDS)):
        return f"{match['scheme']}{match['user']}:{HIDDEN}@"
    return f"{match['scheme']}{HIDDEN}@" if is_web and match["user"] else match[0]


def redact_user(flag: str, item: str) -> str | None:
    """Return what may be shown of the argument of `-u`, or None for any other option."""
    user, colon, password = item.partition(":")
    is_user = _USER_OPTION.fullmatch(flag) and colon and not password.startswith("//")
    if not is_user or _NUMBERS.fullmatch(password):
        return None
    return f"{user}:{HIDDEN}"


def _redact_user_flag(match: re.Match[str]) -> str:
    """`docker run -u 1000:1000` names a user and a group."""
    is_group = _NUMBERS.fullmatch(match["password"])
    return match[0] if is_group else f"{match['user']}{HIDDEN}"


_EMPTY_WORDS = (
    "none|null|nil|true|false|undefined|required|missing|invalid|expired|empty|unset|str|bytes"
)
_PLACEHOLDER = re.compile(
    rf"""["']{{0,2}}(?:(?i:{_EMPTY_WORDS})|\*{{1,40}}|\$[A-Z_][A-Z0-9_]{{0,60}}"""
    rf"""|\$\{{[\w.:-]{{1,60}}\}}|%\(\w{{1,60}}\)s|%[sr]|\{{(?:[a-z_]{{0,60}}|\d{{1,2}})\}}"""
    rf"""|(?:(?i:{_SCHEMES})\s{{1,4}})?\[redacted\])?["')\]}},.:;]{{0,6}}"""
)
"""What stands where a secret could stand, and is none."""
_STOP = r"""[,;&](?=\s|\Z|["'\w.\[\]-]{1,60}+\s{0,2}[=:])"""
_VALUE = rf"""
    (?P<value>
        [|>][-+\d]{{0,2}}[ \t]{{0,4}}\r?\n(?P<indent>[ \t]++)[^\r\n]*+
        (?:\r?\n(?P=indent)[^\r\n]*+){{0,500}}+
      | &(?:quot|\#34|\#39);[^&<>\r\n]*+ | %22(?:[^%\s&]|%(?!22))*+
      | [bu]?(?:"{{2,3}}|'{{2,3}})(?=[^\s"'`,;:.)\]}}&<>|])[^"'\r\n]*+["']{{0,3}}
      | [bu]?"(?:[^"\\]|\\.){{0,20000}}+" | [bu]?'(?:[^'\\]|\\.){{0,20000}}+'
      | [bu]?["'][^"'\r\n]*+
      | \\{{2,7}}["'][^"'\r\n]*+
      | \\["'](?:[^"'\\]|\\[^"'])*+(?:\\["'])?
      | `[^`]{{0,4000}}+`? | \[[^\]]{{0,4000}}+\]? | \{{[^}}]{{0,4000}}+\}}?
      | {_NOT_PROSE}(?:(?:token|{_SCHEMES})\s{{1,4}}(?=\S))?(?:(?!{_STOP})\S)++
    )
"""
_FLAGS = re.IGNORECASE | re.VERBOSE | re.DOTALL
_ASSIGNED = re.compile(
    rf"""
    (?P<closing>[\])]?(?:\\{{0,7}}["'`]|&(?:quot|\#34|\#39);|%22)?\]?)
    (?:
        \s{{0,4}},?\s{{0,4}}\\?["']?value\\?["']?\s{{0,4}}[=:]\s{{0,4}}
      | [ \t]{{0,60}}+\s{{0,4}}(?:=>|:=|==?|:|->|%3[AD])[ \t]{{0,60}}+\s{{0,4}}
      | \s{{0,4}},\s{{0,4}}(?=[bu]?\\?["'])
    )
    {_VALUE}
    """,
    _FLAGS,
)
_WHOLE_LINE = re.compile(r"""\s{0,4}[:=]\s{0,4}(?P<value>[^\s"'][^\r\n]*+)""")
_AFTER_FLAG = re.compile(rf"""["']?,?\s{{1,4}}(?!-){_VALUE}""", _FLAGS)
_AFTER_SQL = re.compile(r"""\s{1,4}(?P<value>'[^']*+'?|"[^"\r\n]*+"?)""")
_IN_TAG = re.compile(
    r"""\s(?:[^<>]{0,200}?\s)?value\s{0,3}=\s{0,3}(?P<value>"[^"]*+"|'[^']*+')""", re.IGNORECASE
)
_AFTER_TAG = re.compile(r"(?:\s[^<>]{0,200}+)?>(?P<value>(?:<!\[CDATA\[)?[^<]++)")
_FLAG_BEFORE = re.compile(r"""(?:^|[\s"'=(,])--?[\w-]{0,50}+\Z""")
_PATH_BEFORE = re.compile(r"/[\w.-]{0,50}+\Z")
_TAG_BEFORE = re.compile(r"<[\w:.-]{0,50}+\Z")
_PREFIX_CHARS = 60
_LINE_WORDS = ("passphrase", "mnemonic")
_SQL_WORDS = ("password", "passwd", "passphrase")


class Assignments:
    """Redact what is assigned to a secret name: `name=value`, `"name": "value"`, `--name value`,
    `name => value`, `("name", "value")`, `<name>value` and `PASSWORD 'value'`."""

    def __init__(self, names: SecretNames) -> None:
        self._names = names
        stems = (*SECRET_PHRASES, *SECRET_WORDS, *names.keys)
        spelled = (re.escape(stem).replace("_", r"[ _.-]?") for stem in stems)
        weak = "|".join(WEAK_WORDS)
        self._name = re.compile(
            rf"(?:{'|'.join(spelled)}|(?<![A-Za-z])(?:{weak})(?![A-Za-z])"
            r"|(?<=[a-z0-9])(?-i:Pass|Pwd)(?![a-z]))[\w.-]{0,60}+",
            re.I,
        )
        self.triggers = (
            *("pass", "secret", "token", "key", "auth", "cookie", "credential", "mnemonic"),
            *("sess", "jwt", "otp", "pwd", *(key.lower() for key in names.keys)),
        )

    def redact(self, text: str) -> str:
        pieces: list[str] = []
        position = 0
        for start, end in self._find(text):
            pieces += (text[position:start], HIDDEN)
            position = end
        return "".join((*pieces, text[position:])) if pieces else text

    def _find(self, text: str) -> Iterator[tuple[int, int]]:
        position = 0
        while name := self._name.search(text, position):
            position = name.end()
            value = self._value(text, name)
            if value is not None and not _PLACEHOLDER.fullmatch(value["value"]):
                position = value.end("value")
                yield value.span("value")

    def _value(self, text: str, name: re.Match[str]) -> re.Match[str] | None:
        word = name[0].rstrip(".-")
        is_secret = self._names.is_secret(word)
        if not is_secret and not self._names.is_weak(word):
            return None
        end = name.start() + len(word)
        before = text[max(0, name.start() - _PREFIX_CHARS) : name.start()]
        if _TAG_BEFORE.search(before):
            return _IN_TAG.match(text, end) or _AFTER_TAG.match(text, end)
        if _FLAG_BEFORE.search(before) and (found := _AFTER_FLAG.match(text, end)):
            return found
        if word.lower().endswith(_LINE_WORDS) and (found := _WHOLE_LINE.match(text, end)):
            return found
        assigned = _ASSIGNED.match(text, end)
        if assigned is None:
            return _AFTER_SQL.match(text, end) if word.lower() in _SQL_WORDS else None
        if assigned[0].startswith(": ") and _PATH_BEFORE.search(before):
            return None  # a message about a file: `/etc/passwd: Permission denied`
        return assigned if is_secret or _is_assigned(before, assigned) else None


def _is_assigned(before: str, assigned: re.Match[str]) -> bool:
    """Whether `pass` or `pwd` is the name of a setting here, and not a word or a directory."""
    if assigned["value"].startswith("/") or _NUMBERS.fullmatch(assigned["value"]):
        return False
    is_named = before.endswith(("_", "-")) or bool(assigned["closing"])
    return is_named or assigned[0].lstrip().startswith("=")
