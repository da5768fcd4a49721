// After an owner was restarted, every use of an object of its former incarnation is refused with an
// error that names both incarnations. Such a use never reaches a new object of the same name.

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/calls.h"
#include "client/psd.h"
#include "core/base/ids.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// The objects of owner1 that a trainer refers to, and a context that has reached owner1.
struct Held {
  Held(const std::vector<OwnerAddress>& owners, const std::string& name) {
    WorkerOptions options = TrainerOptions(name, owners);
    EXPECT_TRUE(options.functions
                    .Register("hand_on",
                              [this](const FunctionCall&, const Values&) -> absl::StatusOr<Values> {
                                return Values{w};
                              })
                    .ok());
    worker = Must(Worker::Start(std::move(options)));
    CreateOptions create;
    create.requires_grad = true;
    w = Must(worker->GetOrCreate("owner1", "w", Zeros({2}), create));
    root = Must(worker->GetOrCreate("owner1", "root", Zeros({1}), create));
    create.rows = true;
    table = Must(worker->GetOrCreate("owner1", "table", Zeros({4, 2}), create));
    optimizer = Must(DistributedOptimizer::Create(*worker, kOptimizer, Sgd(), {w}));
    context.emplace(Must(worker->NewContext()));
    pulled = Must(worker->ToHere({w}, *context));
    in_context.context = &*context;
  }

  std::unique_ptr<Worker> worker;
  RRef w, root, table;
  std::unique_ptr<DistributedOptimizer> optimizer;
  std::optional<Context> context;
  CallOptions in_context;
  std::vector<Variable> pulled;
};

const Function kNegate = Function::Operator("neg", 1);
const Tensor kTwo = Tensor::Of<float>({2}, {1, 1});

// Returns the error of a remote creation, which comes at once or when the reference is confirmed.
absl::Status Confirmed(const absl::StatusOr<RRef>& rref) {
  return rref.ok() ? rref->confirmed().Wait().status() : rref.status();
}

struct Use {
  std::string name;
  std::function<absl::Status(Held&)> run;
  friend std::ostream& operator<<(std::ostream& out, const Use& use) { return out << use.name; }
};

RowsQuery FirstRow(const Held& held) {
  return {held.table, Tensor::Of<int64_t>({1}, {0})};
}

const std::vector<Use>& Uses() {
  static const auto* uses = new std::vector<Use>{
      {"Fetch", [](Held& h) { return h.worker->ToHere({h.w}).status(); }},
      {"FetchInContext", [](Held& h) { return h.worker->ToHere({h.w}, *h.context).status(); }},
      {"Pull", [](Held& h) { return h.worker->Pull({h.w}).status(); }},
      {"Assign", [](Held& h) { return h.worker->Assign(h.w, kTwo).status(); }},
      {"Rows", [](Held& h) { return h.worker->LookUpRows({FirstRow(h)}).status(); }},
      {"RowsInContext",
       [](Held& h) { return h.worker->LookUpRows({FirstRow(h)}, *h.context).status(); }},
      {"CallInContext",
       [](Held& h) { return h.worker->RpcSync("owner1", kNegate, {kTwo}, h.in_context).status(); }},
      {"RemoteInContext",
       [](Held& h) {
         return Confirmed(h.worker->Remote("owner1", kNegate, {kTwo}, h.in_context));
       }},
      {"ArgumentToItsOwner",
       [](Held& h) { return h.worker->RpcSync("owner1", kNegate, {h.w}).status(); }},
      {"ArgumentToAnotherWorker",
       [](Held& h) {
         return h.worker->RpcSync(h.worker->name(), Function::Registered("hand_on"), {h.w})
             .status();
       }},
      {"ArgumentOfRemote",
       [](Held& h) { return Confirmed(h.worker->Remote("owner1", kNegate, {h.w})); }},
      {"Method", [](Held& h) { return ObjectProxy(*h.worker, h.w).RpcSync("any", {}).status(); }},
      {"HandedOnInAnAnswer",
       [](Held& h) {
         const absl::StatusOr<Values> answer =
             h.worker->RpcSync(h.worker->name(), Function::Registered("hand_on"), {});
         return answer.ok() ? Confirmed(RRef::FromValue((*answer)[0])) : answer.status();
       }},
      {"Backward", [](Held& h) { return h.context->Backward({Sum(h.pulled[0])}); }},
      {"BackwardFromAReference", [](Held& h) { return h.context->Backward(h.root); }},
      {"BackwardFrom", [](Held& h) { return h.context->BackwardFrom(h.pulled, {kTwo}); }},
      {"PushGradient", [](Held& h) { return h.context->PushGradient(h.w, kTwo, 0); }},
      {"Gradient", [](Held& h) { return h.context->Gradient(h.w).status(); }},
      {"SparseGradient", [](Held& h) { return h.context->SparseGradient(h.table).status(); }},
      {"Step", [](Held& h) { return h.optimizer->Step(*h.context); }},
      {"OptionsOfAnOptimizer",
       [](Held& h) {
         return h.optimizer->SetOptions(0, {{"lr", 0.5}});
       }},
      {"NewOptimizer",
       [](Held& h) {
         return DistributedOptimizer::Create(*h.worker, "another", Sgd(), {h.w}).status();
       }},
  };
  return *uses;
}

class RestartedOwnerTest : public ::testing::Test {
 protected:
  std::vector<OwnerAddress> owners() const { return {other_.address(), owner_.address()}; }
  Incarnation IncarnationNow() {
    const auto observer = Must(Worker::Start(TrainerOptions("observer", owners())));
    return Must(StatusOf(*observer, "owner1")).incarnation();
  }
  // Assigns to the parameter that has the old name in the owner's new incarnation.
  void MakeAnew(Held& later) {
    EXPECT_TRUE(later.worker->Assign(later.w, Tensor::Of<float>({2}, {7, 7})).ok());
  }
  void ExpectBothLivesNamed(const absl::Status& refused, Incarnation before, Incarnation after) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted) << refused;
    for (const std::string& part :
         {std::string("owner1"), IncarnationToString(before), IncarnationToString(after)}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
    }
  }

  Daemon other_;
  Daemon owner_{{"owner1", "127.0.0.1:0", other_.AsRegistrar()}};
};

TEST_F(RestartedOwnerTest, EveryUseOfItsFormerLifeNamesBothLives) {
  Held held(owners(), "trainer0");
  const Incarnation before = IncarnationNow();
  owner_.Restart();
  Held later(owners(), "trainer1");
  MakeAnew(later);
  const Incarnation after = IncarnationNow();
  ASSERT_NE(before, after);
  for (const Use& use : Uses()) {
    SCOPED_TRACE(use.name);
    ExpectBothLivesNamed(use.run(held), before, after);
  }
  held.context.reset();
  EXPECT_THAT(Read(*later.worker, later.w), Each(7)) << "nothing reached it";
  EXPECT_TRUE(later.context->Backward({Sum(later.pulled[0])}).ok());
}

// The use itself is the first call that notices the restart.
class FirstUse : public RestartedOwnerTest, public ::testing::WithParamInterface<Use> {};

TEST_P(FirstUse, NamesBothLives) {
  Held held(owners(), "trainer0");
  const Incarnation before = IncarnationNow();
  owner_.Restart();
  absl::Status refused = GetParam().run(held);
  // The connection may have been tried just before the owner ran again.
  while (absl::IsUnavailable(refused)) refused = GetParam().run(held);
  ExpectBothLivesNamed(refused, before, IncarnationNow());
}

INSTANTIATE_TEST_SUITE_P(Uses, FirstUse, ::testing::ValuesIn(Uses()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace psd::crash
