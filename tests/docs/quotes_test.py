"""Checks that documents quote code that is in the sources and that the compiler sees.

A fenced block under a line `<!-- quoted from PATH -->` holds lines of that file, in their order and
next to each other. "..." stands for lines that are left out; blank lines and comments may be left
out without it. All C++ in documents is quoted from files that are built with -pedantic-errors.
Without this option, gcc accepts code that is not C++17, like designated initializers.
"""
import os
import re
import sys
import unittest

BLOCK = re.compile(r"(?:^<!-- quoted from (\S+) -->\n)?^```(\w+)\n(.*?)^```$",
                   re.MULTILINE | re.DOTALL)
CPP = {"cpp", "c++", "cc", "cxx"}


def quotes(document):
    """Returns (quoted file or None, language, lines) for each fenced block with a language."""
    return [(path or None, language, lines.splitlines())
            for path, language, lines in BLOCK.findall(document)]


ANY_LINES = r"(?:.*\n)*?"
COMMENT_LINES = r"(?:(?://|# ).*\n|\n)*?"


def pattern(quoted):
    """Returns a pattern for a source that has the lines `quoted`. All lines are stripped."""
    parts = [ANY_LINES if line == "..." else COMMENT_LINES + re.escape(line) + r"\n"
             for line in quoted]
    return re.compile(ANY_LINES + "".join(parts))


def mismatch(quoted, source):
    """Returns the first of the `quoted` lines that does not follow in `source`, or None."""
    text = "".join(line.strip() + "\n" for line in source)
    lines = [line.strip() for line in quoted if line.strip()]
    for end in range(1, len(lines) + 1):
        if not pattern(lines[:end]).match(text):
            return lines[end - 1]
    return None


def is_built_pedantically(root, path):
    folder, name = os.path.split(os.path.join(root, path))
    try:
        with open(os.path.join(folder, "BUILD.bazel"), encoding="utf-8") as build:
            rules = build.read().split("\n\n")
    except OSError:
        return False
    return any('"%s"' % name in rule and '"-pedantic-errors"' in rule for rule in rules)


def problem(root, path, language, lines):
    """Describes why a block of a document is not a faithful quotation, or returns None."""
    if path is None:
        return "C++ that is quoted from nowhere" if language in CPP else None
    if language in CPP and not is_built_pedantically(root, path):
        return "%s is not built with -pedantic-errors" % path
    try:
        with open(os.path.join(root, path), encoding="utf-8") as source:
            wrong = mismatch(lines, source.read().splitlines())
    except OSError as error:
        return str(error)
    return None if wrong is None else "%s does not go on with: %s" % (path, wrong)


def documents(root):
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if not n.startswith((".", "bazel-"))]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".md"))


class QuotesTest(unittest.TestCase):
    def test_a_quotation_is_compared(self):
        source = ["int x;", "", "  // Why.", "int y;", "int z;"]
        self.assertIsNone(mismatch(["  int x;", "int y;"], source))
        self.assertIsNone(mismatch(["int x;", "// Why.", "int y;"], source))
        self.assertIsNone(mismatch(["int x;", "...", "int z;"], source))
        self.assertEqual(mismatch(["int x;", "int z;"], source), "int z;")
        self.assertEqual(mismatch(["int y;", "int x;"], source), "int x;")
        self.assertEqual(mismatch(["int w;"], source), "int w;")
        self.assertIsNone(mismatch(["{", "...", "}", "end"], ["{", "{", "}", "}", "end"]))

    def test_blocks_are_found(self):
        text = ("a\n<!-- quoted from b.cc -->\n```cpp\nint x;\n```\n"
                "```\nmake\n```\n"
                "```cpp\nint y;\n```\n")
        self.assertEqual(quotes(text), [("b.cc", "cpp", ["int x;"]), (None, "cpp", ["int y;"])])

    def test_cpp_from_nowhere_is_refused(self):
        self.assertIsNotNone(problem(".", None, "cpp", ["int x;"]))
        self.assertIsNone(problem(".", None, "python", ["x = 1"]))

    def test_every_quotation_of_the_documents(self):
        root = os.path.dirname(os.path.realpath("WORKSPACE"))
        problems = []
        count = 0
        for document in documents(root):
            with open(document, encoding="utf-8") as text:
                for block in quotes(text.read()):
                    count += block[0] is not None
                    found = problem(root, *block)
                    if found is not None:
                        problems.append("%s: %s" % (os.path.relpath(document, root), found))
        self.assertEqual(problems, [])
        self.assertGreater(count, 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
