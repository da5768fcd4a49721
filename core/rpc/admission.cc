#include "core/rpc/admission.h"

#include "core/rpc/draining.h"

namespace psd::rpc {

absl::Status Admission::WhileDraining(const Arrival& arrival) const {
  const bool reads = arrival.kind == MethodKind::kRead;
  const bool served = arrival.by == Entrance::kSelf || (arrival.by == Entrance::kUnary && reads);
  return served ? absl::OkStatus() : DrainingError(self_, arrival.method);
}

}  // namespace psd::rpc
