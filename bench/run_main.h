#pragma once

namespace psd::bench {

// The whole program: bench, or bench:compare, which needs the peer. Returns the exit code: 0, or 1
// if a case failed or there is no peer, or 2 for a wrong command line.
int RunMain(int argc, char** argv, bool with_peer);

}  // namespace psd::bench
