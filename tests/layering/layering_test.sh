#!/bin/sh
exec /usr/bin/python3 -B tests/layering/layering_test.py
