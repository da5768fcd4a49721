#pragma once

// Runs a daemon process: command line, configuration, signals, exit codes.

#include "server/daemon/server.h"

namespace psd::server {

// The exit codes of the process.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,       // a failure while running
  kExitUsage = 2,         // wrong flags or configuration
  kExitCannotListen = 3,  // port in use, no permission
  kExitImpatient = 4,     // a second stop signal came before all calls had ended
  kExitExhausted = 5,     // the system refuses threads or memory
  kExitStopHung = 6,      // the stop took longer than drain_timeout and 10 s
};

// The whole of main: reads the command line, serves until SIGTERM or SIGINT, drains, and returns
// the exit code. Must be called on the main thread before any other thread runs, because it changes
// process-wide settings and blocks signals.
int RunDaemon(int argc, char** argv, ServerExtensions extensions);

}  // namespace psd::server
