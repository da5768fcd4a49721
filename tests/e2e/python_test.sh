#!/bin/sh
# Runs a Python test with the system's interpreter. "$1" is the path of the test.
exec /usr/bin/python3 -B "$@"
