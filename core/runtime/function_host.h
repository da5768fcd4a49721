#pragma once

// The parts of a worker that its registered functions may use. This file is in core/runtime because
// it joins calls and values, which do not include each other.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_options.h"
#include "core/rref/gate.h"
#include "core/rref/rref.h"
#include "core/services/calls/functions.h"
#include "core/store/value.h"

namespace psd::worker {

class Runtime;

// Thread-safe.
class RuntimeFunctionHost : public services::FunctionHost,
                            public std::enable_shared_from_this<RuntimeFunctionHost> {
 public:
  // The runtime must close the host before the runtime is destroyed.
  RuntimeFunctionHost(Runtime& runtime, rpc::PeerInfo self)
      : runtime_(runtime), self_(std::move(self)) {}
  // Refuses new requests, and waits for those that are being started.
  void Close() { gate_->Close(); }

  const rpc::PeerInfo& self() const override { return self_; }
  Future<store::Values> Run(const std::string& callee, const services::CallTarget& target,
                            store::Values arguments, const ContextPtr& context,
                            absl::Time deadline) override;
  absl::StatusOr<rref::RRef> Remote(const std::string& callee, const services::CallTarget& target,
                                    store::Values arguments, const ContextPtr& context,
                                    absl::Time deadline) override;
  Future<store::Values> Fetch(const std::vector<rref::RRef>& rrefs, const ContextPtr& context,
                              absl::Time deadline) override;
  absl::StatusOr<rref::RRef> Keep(store::Value value, bool requires_grad) override;

 private:
  absl::Status Destroyed() const;
  // Runs `target` if the search for the callee, which ended with `known`, has found it.
  Future<store::Values> RunKnown(const absl::Status& known, const std::string& callee,
                                 const services::CallTarget& target, store::Values arguments,
                                 const ContextPtr& recording, absl::Time deadline);
  // Returns the options of a request that ends at `deadline`. Errors: DEADLINE_EXCEEDED.
  absl::StatusOr<rpc::CallOptions> OptionsUntil(absl::Time deadline) const;

  Runtime& runtime_;  // only to be used inside the gate
  const rpc::PeerInfo self_;
  // Shared with requests that wait until their callee is known.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
};

}  // namespace psd::worker
