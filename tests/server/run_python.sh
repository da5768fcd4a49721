#!/bin/sh
# Runs a Python test, as the rules that name this script do. The test needs only the standard
# library, unless the first argument is --grpc.
set -eu
if [ "$1" = --grpc ]; then
  shift
  if ! /usr/bin/python3 -c "import grpc, google.protobuf" 2>/dev/null; then
    echo "skipped: python3-grpcio or python3-protobuf is not installed"
    exit 0
  fi
fi
exec /usr/bin/python3 -B "$@"
