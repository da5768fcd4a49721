"""The second half of tools/test: runs `bazel test` with the given arguments, prints the totals.

Bazel's own lines are passed on, except its progress, which becomes one line now and then.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import build  # noqa: E402
import children  # noqa: E402
import progress  # noqa: E402
import test_totals  # noqa: E402

def run_tests(arguments, events, stop_request):
    """Returns bazel's exit code."""
    line = progress.ProgressLine(plain_interval_s=build.LOG_LINE_S)
    state = build.BuildProgress("testing")

    told = set()  # Bazel repeats its final lines with every progress line that is left

    def on_line(text):
        state.take(text)
        if build.is_progress(text) or text in told:
            return
        line.print(text)
        if text.startswith("INFO: "):
            told.add(text)

    flags = [build.cache_flag(), *build.PROGRESS_FLAGS, "--keep_going",
             "--build_event_json_file=" + events]
    child = build.run(["test", *flags, *arguments], stop_request, on_line,
                      lambda: line.show(state.text()))
    line.end()
    return child.process.returncode


def main():
    with children.StopRequest() as stop_request, tempfile.TemporaryDirectory() as folder:
        events = os.path.join(folder, "events")
        try:
            status = run_tests(sys.argv[1:], events, stop_request)
        except children.Stopped as stopped:
            print("stopped by %s" % stopped, file=sys.stderr)
            return 128 + stopped.signal_number
        except children.ChildFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        totals = test_totals.print_totals(events)
        return status or totals


if __name__ == "__main__":
    sys.exit(main())
