"""Keys that somebody will send one day: what breaks names, paths, logs, URLs and databases elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st

# Each of these is a legal key and must be kept apart from every other.
HOSTILE = (
    *(".", "..", "../..", "/", "//", "/etc/passwd", "a/../b", "a/./b", "a/b", "a//b", "a/b/", "\\..\\", "C:\\x"),
    *("%", "%2F", "%2f", "%252F", "%25", "%00", "%2e%2e", "a%2Fb", "name/x", "//name/x", "x/y/name/z"),
    *("a", "A", "a ", " a", " ", "\t", "\n", "a\n", "a\r\nb", "\x1b[31m", "\x7f", "\x01"),
    *("é", "e\u0301", "ｅ", "е", "ﬁ", "fi", "ß", "ss", "İ", "i̇", "K", "\u212a", "\u00c5", "\u212b", "①", "1", "१"),
    *("\u202eabc", "abc\u202c", "\u200ba", "a\u200b", "a\u200d", "\ufeffa", "\ufffd", "\U0010ffff", "👩‍👩‍👧", "👩👩👧"),
    *("*", "?", "[a-z]", "{a}", "{}", "{{", "}", "a:b", "a::b", "$1", "'", '"', "'; DROP TABLE records; --", "\\0"),
    *("_", "%%", "a_", "a%", "NULL", "None", "0", "00", "-1", "1e3", "True", "lock", "name", "\u2028", "x" * 1024),
)

# Few characters, so that accidents of joining and escaping come up often.
CROWDED = st.text(alphabet="a/%25F0.", min_size=1, max_size=8)

VALID_TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40
) | st.sampled_from(HOSTILE)
KEYS = CROWDED | VALID_TEXT
LABELS = st.none() | CROWDED | VALID_TEXT.filter(lambda text: len(text) <= 128)
