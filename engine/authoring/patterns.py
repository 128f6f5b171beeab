"""Which regular expressions a schema may hold.

Its job: refuse, before an engine sees it, what a linear-time engine cannot do or what blows up when it is compiled.
Not its job: the grammar as a whole (the host compiles each pattern when it checks a declaration).
Laws:
1. Look-around, back-references, conditionals and atomic groups refuse by name (tests/unit/test_strict.py).
2. Standard library only, without ``re`` (tests/house/test_guest_tree.py).
"""

_LENGTH = 512  # characters; the longest patterns seen in tool schemas have some 200
_COUNT = 1000  # the largest {n,m}; each repetition is a copy in a compiled automaton
_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?P=": "a back-reference",
    "(?(": "a conditional",
    "(?>": "an atomic group",
}


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a pattern and the remedy, None when nothing is."""
    if len(pattern) > _LENGTH:
        return f"the pattern has {len(pattern)} characters, at most {_LENGTH} are allowed: match less, or use an enum"
    at, in_class = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            if not in_class and (pattern[at + 1 : at + 2] in tuple("123456789") or pattern[at + 1 : at + 2] == "k"):
                return "the pattern has a back-reference, which no linear-time engine can match: write it without"
            at += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += 2 if pattern[at + 1 : at + 3] == "^]" else 1 if pattern[at + 1 : at + 2] == "]" else 0
        else:
            problem = _group(pattern, at) or _repetition(pattern, at)
            if problem is not None:
                return problem
        at += 1
    return None


def _group(pattern: str, at: int) -> str | None:
    for opening, what in _GROUPS.items():
        if pattern.startswith(opening, at):
            return f"the pattern has {what}, which no linear-time engine can match: write it without"
    return None


def _repetition(pattern: str, at: int) -> str | None:
    if pattern[at] != "{":
        return None
    numbers = pattern[at + 1 : pattern.find("}", at)].split(",")
    if any(len(number) > 4 or int(number) > _COUNT for number in numbers if number.isascii() and number.isdigit()):
        return f"the pattern repeats more than {_COUNT} times: use min_length and max_length for sizes"
    return None
