#pragma once

// Runs cases in interleaved blocks, psd, floor, peer, psd, floor, peer, …, and compares block by
// block. So a disturbance of the machine that lasts a second affects all of them.

#include "absl/status/statusor.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/workload.h"

namespace psd::bench {

// `peer` may be null.
absl::StatusOr<Row> RunCase(const Case& one, const Environment& environment, Peer* peer);

}  // namespace psd::bench
