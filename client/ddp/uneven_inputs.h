#pragma once

// Training with different numbers of inputs: a rank that has run out of inputs goes on making the
// collective calls that the others make, as in PyTorch's Join.
//
//   PSD_RETURN_IF_ERROR(psd::RunUneven(*worker, {ddp.get(), zero.get()},
//       [&]() -> absl::StatusOr<std::optional<psd::Context>> {
//         if (batches.empty()) return std::nullopt;
//         PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//         …
//         PSD_RETURN_IF_ERROR(context.Backward({loss}));
//         return context;
//       }));
//
// BufferedDataParallel::IterateWith and ZeroRedundancyOptimizer::IterateWith give the calls their
// options, for example to weigh the ranks by their samples or to limit the norm of the gradients.

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/context.h"
#include "client/ddp/joinable.h"
#include "client/worker.h"

namespace psd {

struct UnevenOptions {
  // If true, all ranks stop with an error as soon as one has run out of inputs. If false, the
  // others go on until all have.
  bool stop_early = false;
  // Timeout of the calls by which the ranks tell each other whether they have inputs. It must be
  // longer than an iteration may take.
  CollectiveOptions call;
};

// Computes the gradients of this rank's next input. Returns the context that has collected them, or
// nothing if there are no inputs left. It makes no calls of the group, so it runs Context::Backward
// and not BufferedDataParallel::Backward.
using ComputeGradients = std::function<absl::StatusOr<std::optional<Context>>()>;

// Runs iterations until no rank has inputs. In each iteration every rank that has an input computes
// gradients. Then all ranks make the calls of `joinables` in their order (Joinable::Iterate). A
// rank that has run out passes an empty context, so it counts as a rank without gradients. All
// ranks make as many iterations as the rank with the most inputs. All ranks must call it. Errors:
// - INVALID_ARGUMENT for no joinables, a null one, or some of different groups.
// - If `compute` returns an error: that error, and FAILED_PRECONDITION naming this rank on the
//   others, in the same iteration. There GetDetail(status)->worker is the failed worker of the
//   lowest rank.
// - With stop_early: FAILED_PRECONDITION naming the ranks that have run out, on all ranks.
// - The error of a joinable, or of creating a context. The group has failed then, and the other
//   ranks are told why.
absl::Status RunUneven(Worker& worker, const std::vector<Joinable*>& joinables,
                       const ComputeGradients& compute, const UnevenOptions& options = {});

}  // namespace psd
