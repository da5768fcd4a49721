#pragma once

// Runs cases in interleaved blocks: psd, floor, peer, psd, floor, peer, … so that what disturbs the
// machine for a second disturbs all of them, and compares block by block.

#include "absl/status/statusor.h"
#include "bench/peer.h"
#include "bench/report.h"
#include "bench/workload.h"

namespace psd::bench {

// `peer` may be null.
absl::StatusOr<Row> RunCase(const Case& one, const Environment& environment, Peer* peer);

}  // namespace psd::bench
