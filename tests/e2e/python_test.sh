#!/bin/sh
# Runs a Python test with the system's interpreter: "$1" is its path.
exec /usr/bin/python3 -B "$@"
