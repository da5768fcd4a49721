"""Prints "N passed, N failed" from the build event file of a `bazel test`."""
import json


def results(path):
    """Returns, by label, whether each test target that was to run has passed."""
    passed = {}
    try:
        events = open(path, encoding="utf-8")
    except FileNotFoundError:
        return passed
    with events:
        for line in events:
            event = json.loads(line)
            ident = event["id"]
            if "testSummary" in ident:
                status = event.get("testSummary", {}).get("overallStatus")
                passed[ident["testSummary"]["label"]] = status in ("PASSED", "FLAKY")
            elif "targetConfigured" in ident and "testSize" in event.get("configured", {}):
                passed.setdefault(ident["targetConfigured"]["label"], None)
            elif "targetCompleted" in ident and not event.get("completed", {}).get("success"):
                label = ident["targetCompleted"]["label"]
                if label in passed:
                    passed[label] = False
    # Targets without a result were configured, but left out by a tag filter.
    return {label: result for label, result in passed.items() if result is not None}


def print_totals(path):
    """Counts test targets. A target that was not built, timed out or never ran counts as failed.
    Returns 0 if all passed, 3 if one failed, 4 if none ran."""
    outcomes = results(path).values()
    good = sum(outcomes)
    bad = len(outcomes) - good
    print("%d passed, %d failed" % (good, bad), flush=True)
    return 3 if bad else 0 if good else 4
