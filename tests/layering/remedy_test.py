"""Checks that an error whose text ends in advice says so by WithRemedy (core/base/remedy.h).

WithRemedy also sets ErrorDetail::remedy, which programs read. An error made as
`absl::InvalidArgumentError("the file is gone; fetch it again")` has the advice in its text alone.
Advice is a part of the text that follows a semicolon and begins with an imperative, one of VERBS.
"""
import os
import re
import sys

LAYERS = ["core", "server", "client"]
VERBS = set("""
    add allow ask assign begin call cast change check choose close compute copy create cut declare
    drop end fetch fill free give increase install join keep leave listen load look lower make move
    name open pass pin pull put raise read reduce register release remove rename repeat replace
    reshape restart retry return run save say send set shrink slice split start stop sum test take
    transpose try turn use wait watch write
""".split())

# A comment, a literal (also R"(...)") or a character.
TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?P<raw>.*?)\)"|"(?P<text>(?:\\.|[^"\\\n])*)"
                       |'(?:\\.|[^'\\\n])'|(?P<call>\b\w+(?=\())|.""", re.DOTALL | re.VERBOSE)
ERROR = re.compile(r"\w+Error$")
ADVICE = re.compile(r"; (\w+)\b")


def texts(source):
    """Yields (line, text) for each error that is made outside of WithRemedy.

    A text has a "%" for what stands between its literals.
    """
    depth, name = 0, ""
    open_calls = []  # [name, depth, line, parts of the text] of calls that have not ended
    for token in TOKEN.finditer(source):
        word = token.group()
        if word.startswith(("//", "/*")) or word.isspace():
            continue
        text = token.group("text") if token.group("text") is not None else token.group("raw")
        if open_calls and text is not None:
            open_calls[-1][3].append(text)
        elif open_calls and word.isalnum() and open_calls[-1][3][-1:] != ["%"]:
            open_calls[-1][3].append("%")
        if word == "(":
            depth += 1
            if ERROR.match(name) or name == "WithRemedy":
                line = source.count("\n", 0, token.start()) + 1
                open_calls.append([name, depth, line, []])
        elif word == ")":
            if open_calls and open_calls[-1][1] == depth:
                ended, _, line, parts = open_calls.pop()
                if ended != "WithRemedy" and not any(c[0] == "WithRemedy" for c in open_calls):
                    yield line, "".join(parts)
            depth -= 1
        name = token.group("call") or ""


def advice(text):
    """Returns the first word of the advice in the text of an error, or None."""
    return next((word for word in ADVICE.findall(text) if word in VERBS), None)


def problems(source):
    return [(line, word) for line, word in ((line, advice(text)) for line, text in texts(source))
            if word]


def sources(root):
    for layer in LAYERS:
        for folder, _, files in os.walk(os.path.join(root, layer)):
            for name in files:
                if name.endswith((".h", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def check_itself():
    for source, bad in [
        ('absl::NotFoundError("it is gone; fetch it again")', ["fetch"]),
        ('absl::NotFoundError("it is gone; "\n "fetch it again")', ["fetch"]),
        ('absl::NotFoundError(absl::StrCat(name, " is gone; make ", what, " again"))', ["make"]),
        ('f(absl::InternalError(StrCat("a; give ", x)), absl::DataLossError("b; use c"))',
         ["give", "use"]),
        ('UnavailableError(late ? "it is; try again" : "no")', ["try"]),
        # No advice: a second fact, a range, a word that only begins like a verb.
        ('absl::NotFoundError("it is gone; nothing was applied")', []),
        ('absl::NotFoundError(absl::StrCat("too many; at most ", 3))', []),
        ('absl::NotFoundError("it is gone; usedom is not")', []),
        ('absl::NotFoundError("fetch it; ")', []),
        # With WithRemedy, in a comment, in another call, after the call.
        ('WithRemedy(absl::NotFoundError("it; is"), "fetch it again")', []),
        ('WithRemedy(absl::NotFoundError(StrCat(f("(")), "; use")), "fetch it again")', []),
        ('// absl::NotFoundError("it is gone; fetch it again")', []),
        ('Log("it is gone; fetch it again")', []),
        ('absl::NotFoundError("it is gone"); Log("; fetch it")', []),
        ("f(')'), absl::NotFoundError(\"a \\\"; b\")", []),
    ]:
        found = [word for _, word in problems(source)]
        assert found == bad, (source, found)
    assert problems('\n\nabsl::AbortedError("a; use b")') == [(3, "use")]


def main():
    check_itself()
    # In the test's runfiles, WORKSPACE is a link into the source tree.
    root = os.path.dirname(os.path.realpath("WORKSPACE"))
    count, bad = 0, []
    for path in sorted(sources(root)):
        count += 1
        with open(os.path.join(root, path), encoding="utf-8") as source:
            found = problems(source.read())
        bad += ['%s:%d: an error with the advice "%s ..." is made without WithRemedy'
                % (path, line, word) for line, word in found]
    print("%d files checked, %d errors without a remedy" % (count, len(bad)))
    print("\n".join(bad))
    assert count > 10, "looked at the wrong folder: %s" % root
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
