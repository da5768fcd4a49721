#pragma once

// Owners and trainers in one process, over real loopback connections.

#include <memory>
#include <string>
#include <vector>

#include "client/psd.h"
#include "core/base/future.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "gtest/gtest.h"

namespace psd {

// Returns the value of a result that later lines need. Aborts the test program if it is an error.
template <typename T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status();
    std::abort();
  }
  return *std::move(result);
}

// An owner as a daemon would run it, without the daemon.
class TestOwner {
 public:
  explicit TestOwner(const std::string& name, worker::RuntimeOptions options = {}) {
    options.name = name;
    options.listen = "127.0.0.1:0";
    runtime_ = Must(worker::Runtime::Create(std::move(options)));
    address_ = Must(runtime_->Start());
  }

  OwnerAddress address() const { return {runtime_->name(), address_}; }
  worker::Runtime& runtime() { return *runtime_; }

 private:
  std::unique_ptr<worker::Runtime> runtime_;
  std::string address_;
};

// Holds a parameter's write claim: steps of the parameter wait until this object is destroyed.
class HeldParameter {
 public:
  // Waits for the earlier claims of the parameter.
  HeldParameter(TestOwner& owner, const RRef& parameter)
      : claims_(owner.runtime().store().write_claims()) {
    Promise<Unit> granted;
    claim_ = claims_.Claim({parameter.value_id()},
                           [granted](store::WriteClaims::ClaimId) { granted.Set(Unit{}); });
    Must(granted.future().Wait());
  }
  ~HeldParameter() { claims_.Release(claim_); }
  HeldParameter(const HeldParameter&) = delete;
  HeldParameter& operator=(const HeldParameter&) = delete;

 private:
  store::WriteClaims& claims_;
  store::WriteClaims::ClaimId claim_ = 0;
};

inline std::unique_ptr<Worker> StartTrainer(const std::string& name,
                                            std::vector<OwnerAddress> owners) {
  WorkerOptions options;
  options.name = name;
  options.owners = std::move(owners);
  return Must(Worker::Start(std::move(options)));
}

inline RRef MakeParameter(Worker& worker, const std::string& owner, const std::string& name,
                          const Tensor& elements) {
  CreateOptions options;
  options.requires_grad = true;
  RRef rref =
      Must(worker.GetOrCreate(owner, name, Zeros(elements.shape(), elements.dtype()), options));
  Must(worker.Assign(rref, elements));
  return rref;
}

template <typename T = float>
std::vector<T> Elements(const Tensor& tensor) {
  Tensor contiguous = Must(tensor.Contiguous());
  return std::vector<T>(contiguous.data<T>(), contiguous.data<T>() + contiguous.NumElements());
}

inline std::vector<float> Read(Worker& worker, const RRef& rref) {
  Values values = Must(worker.ToHere({rref}));
  return Elements(values[0].As<Variable>()->tensor());
}

}  // namespace psd
