#pragma once

namespace psd::bench {

// Runs the whole program: bench, or bench:compare, which needs the peer. Returns the exit code: 1
// if a case failed or there is no peer, 2 for a wrong command line, otherwise 0.
int RunMain(int argc, char** argv, bool with_peer);

}  // namespace psd::bench
