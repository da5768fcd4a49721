#pragma once

// The life of a daemon process: command line, configuration, signals, exit codes.

#include "server/daemon/server.h"

namespace psd::server {

// What the process ends with.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,       // while running
  kExitUsage = 2,         // flags or configuration
  kExitCannotListen = 3,  // port in use, no permission
  kExitImpatient = 4,     // told twice to stop, before calls had ended
  kExitExhausted = 5,     // the system refuses threads or memory
};

// All of main: reads the command line, serves until SIGTERM or SIGINT, drains, and returns the
// exit code. Call it from the main thread before any other thread runs: it sets process-wide
// switches and blocks signals.
int RunDaemon(int argc, char** argv, ServerExtensions extensions);

}  // namespace psd::server
