"""Checks docs/architecture.md against the sources: which layer includes which, and the locks.

Every declaration of a Mutex says in a comment behind or above it either "leaf": no other mutex is
locked while it is held, except those of memory; or "before: A, B": the mutexes of these classes are
locked while it is held. A class that has several mutexes is named with the one that is meant,
"GrpcLink::send_mutex_".
"""
import os
import re
import sys
import unittest

sys.path.insert(0, "tests/layering")
import layering_test  # noqa: E402

PAGE = "docs/architecture.md"
SOURCES = ("core", "client", "server", "kernels", "tools")
MUTEX = re.compile(r"^\s*(?:mutable )?(?:Mutex|ByteLock) (\w+);\s*(?://\s*(.*))?$")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:\w+\([^)]*\)\s+)?([A-Za-z_][\w:]*)\s*(?:final\s*)?"
                   r"(?::[^;{}]*)?$")
BEFORE = re.compile(r"\bbefore: ([\w:]+(?:, [\w:]+)*)")
LEAF = re.compile(r"\bleaf\b")
# Classes without a mutex, some of whose implementations have one, which is a leaf.
INTERFACES = {"Clock", "Journal"}


# ---- tables


def table(page, heading):
    """Returns the rows of the first table under `heading`, each a list of the texts of its cells."""
    text = page.split("\n## %s\n" % heading)[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


# ---- locks


def declarations(source):
    """Yields (class, member, comment) for each mutex that the text of a C++ file declares."""
    classes, depth, pending, comment = [], 0, "", []
    for line in source.splitlines():
        code, _, behind = line.partition("//")
        declared = MUTEX.match(line)
        if declared:
            above = " ".join(comment)
            yield (classes[-1][0] if classes else "", declared.group(1),
                   " ".join([above, declared.group(2) or ""]).strip())
        comment = comment + [behind.strip()] if not code.strip() and behind else []
        for character in re.sub(r'"(?:\\.|[^"\\])*"', '""', code):
            if character == "{":
                opened = CLASS.search(pending.strip())
                depth += 1
                if opened:
                    classes.append((opened.group(1), depth))
                pending = ""
            elif character == "}":
                if classes and classes[-1][1] == depth:
                    classes.pop()
                depth -= 1
                pending = ""
            elif character == ";":
                pending = ""
            else:
                pending += character
        pending += " "


def locks(files):
    """Returns {name: None for a leaf, otherwise the set of names that are locked under it}.

    `files` are pairs of a path and a text. Raises ValueError for a declaration without a comment.
    """
    found = [(path, *each) for path, text in files for each in declarations(text)]
    members = {}
    for _, owner, member, _ in found:
        members.setdefault(owner, set()).add(member)
    result = {}
    for path, owner, member, comment in found:
        name = owner if len(members[owner]) == 1 else "%s::%s" % (owner, member)
        before = BEFORE.search(comment)
        if bool(before) == bool(LEAF.search(comment)):
            raise ValueError("%s: the mutex %s of %s needs a comment, either \"leaf\" or "
                             "\"before: CLASS, ...\"" % (path, member, owner))
        under = set(before.group(1).split(", ")) if before else None
        if result.setdefault(name, under) != under:
            raise ValueError("%s: two classes are called %s" % (path, owner))
    return result


def cycle(order):
    """Returns names that are locked under each other in a circle, or an empty list."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name):]
        if name in done:
            return []
        path.append(name)
        for under in sorted(order.get(name) or ()):
            found = visit(under)
            if found:
                return found
        path.pop()
        done.add(name)
        return []

    for name in sorted(order):
        found = visit(name)
        if found:
            return found
    return []


def read_sources(root):
    for top in SOURCES:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".h", ".cc")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as source:
                        yield os.path.relpath(path, root), source.read()


# ---- layers


def arrows(rows):
    """Returns {layer: the layers that it may include} for the rows of the table of layers.

    A layer may include those that its row names and, of the layers of core, what these may include
    in their turn. `kernels` and `proto` may be included only where a row names them.
    """
    named = {}
    for row in rows:
        for layer in quoted(row[0]):
            named[layer] = set(quoted(row[2]))

    def closure(layer, seen):
        for each in named[layer]:
            if each not in seen:
                seen.add(each)
                if each.startswith("core/"):
                    closure_of_core(each, seen)
        return seen

    def closure_of_core(layer, seen):
        for each in named[layer] - {"kernels", "proto"}:
            if each not in seen:
                seen.add(each)
                closure_of_core(each, seen)

    return {layer: closure(layer, set()) for layer in named}


# ---- tests


class ArchitectureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = os.path.dirname(os.path.realpath("WORKSPACE"))
        with open(os.path.join(cls.root, PAGE), encoding="utf-8") as page:
            cls.page = page.read()

    def test_declarations_are_found(self):
        source = ("class A : public B {\n"
                  "  void F() { if (x) {} }\n"
                  "  // Held for long. before: C, D::m_\n"
                  "  mutable Mutex mutex_;\n"
                  "  struct E {\n    Mutex inner;  // leaf\n  };\n"
                  "  Mutex last_;  // before: C\n"
                  "};\n")
        self.assertEqual(list(declarations(source)),
                         [("A", "mutex_", "Held for long. before: C, D::m_"), ("E", "inner", "leaf"),
                          ("A", "last_", "before: C")])
        self.assertEqual(locks([("a.h", source)]),
                         {"A::mutex_": {"C", "D::m_"}, "E": None, "A::last_": {"C"}})
        with self.assertRaises(ValueError):
            locks([("a.h", "class A {\n  Mutex mutex_;\n};\n")])

    def test_a_cycle_is_found(self):
        self.assertEqual(cycle({"A": {"B", "C"}, "B": {"C"}, "C": None}), [])
        self.assertEqual(cycle({"A": {"B"}, "B": {"C"}, "C": {"B"}}), ["B", "C"])

    def test_the_table_of_locks_is_that_of_the_declarations(self):
        declared = locks(read_sources(self.root))
        self.assertGreater(len(declared), 40)
        order = {name: under for name, under in declared.items() if under is not None}
        for under in order.values():
            self.assertLessEqual(under, set(declared) | INTERFACES, "no class with such a mutex")
        self.assertEqual(cycle(order), [])
        page = {}
        for row in table(self.page, "Locks"):
            page[quoted(row[0])[0]] = set(quoted(row[1]))
        self.assertEqual(page, order)

    def test_closures(self):
        rows = [["`core/a`", "", "—"], ["`core/b`", "", "`core/a`, `kernels`"],
                ["`core/c`", "", "`core/b`, `proto`"], ["`x`, `y`", "", "`core/c`"],
                ["`z`", "", "`x`"]]
        found = arrows(rows)
        self.assertEqual(found["core/c"], {"core/a", "core/b", "proto"})
        self.assertEqual(found["y"], {"core/a", "core/b", "core/c"})
        self.assertEqual(found["z"], {"x"})

    def test_the_table_of_layers_is_that_of_the_layering_test(self):
        page = arrows(table(self.page, "Who includes whom"))
        checked = {layer: others - {layer} for layer, others in layering_test.ARROWS.items()}
        self.assertEqual(page, checked)

    def test_every_file_that_the_page_names_exists(self):
        for path in quoted(self.page):
            if re.fullmatch(r"[\w./]+/[\w.]+\.(h|md|cc)", path):
                self.assertTrue(os.path.exists(os.path.join(self.root, path)), path)


if __name__ == "__main__":
    sys.exit(unittest.main())
