#include "core/dist_autograd/dist_autograd.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "core/base/clock.h"
#include "core/rref/value_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fake_rpc.h"

namespace psd::dist_autograd {
namespace {

using ::psd::testing::FakeAgent;
using ::psd::testing::FakeNetwork;
using ::testing::HasSubstr;
using ContextPtr = std::shared_ptr<ContextState>;
using Variables = std::vector<Variable>;

constexpr uint32_t kFunctionTag = 99;

absl::StatusOr<rref::ForkData> NoFork(const store::RemoteReference&) {
  return absl::InternalError("no RRefs here");
}

// A worker with what distributed autograd needs, and one method that runs named functions on
// tensors: what the worker layer does in psd.
struct TestWorker {
  using Function = std::function<Variables(TestWorker&, const ContextPtr&, const Variables&)>;

  TestWorker(FakeNetwork& net, const std::string& name, Incarnation incarnation)
      : network(net), ids(incarnation), agent(net, {name, incarnation}), timers(clock) {
    autograd = DistAutograd::Create(agent, ids, timers, executor);
    agent.RegisterMethod({"test.call", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor,
                          [this](std::shared_ptr<rpc::ServerCall> call) { Serve(*call); }});
  }

  void Serve(rpc::ServerCall& call) {
    ContextPtr context;
    auto arguments = rref::DecodeValues(
        call.payload(),
        [&](std::vector<Tensor> tensors) -> absl::StatusOr<Variables> {
          PSD_ASSIGN_OR_RETURN(auto received, autograd->UnwrapRequest(call, std::move(tensors)));
          context = received.context;
          return received.variables;
        },
        [](const rref::ForkData&) -> absl::StatusOr<store::Value> { return store::Value(); });
    if (!arguments.ok()) return call.Reply(arguments.status());
    Variables results = functions.at(*call.attachment(kFunctionTag))(
        *this, context, rref::CollectVariables(*arguments));
    std::vector<store::Value> values(results.begin(), results.end());
    auto payload = rref::EncodeValues(values, NoFork);
    if (!payload.ok()) return call.Reply(payload.status());
    call.Reply(*std::move(payload), autograd->WrapReply(context, results));
  }

  Variables Call(const ContextPtr& context, const std::string& callee, const std::string& function,
                 const Variables& arguments) {
    rpc::Request request;
    request.method = "test.call";
    std::vector<store::Value> values(arguments.begin(), arguments.end());
    request.payload = *rref::EncodeValues(values, NoFork);
    request.attachments.push_back({kFunctionTag, function});
    if (context != nullptr) {
      auto attachment = autograd->WrapRequest(context, callee, arguments);
      EXPECT_TRUE(attachment.ok()) << attachment.status();
      request.attachments.push_back(*attachment);
    }
    auto reply = agent.StartCall(callee, std::move(request), {}).reply();
    network.RunUntil(reply);
    if (!reply.IsReady() || !reply.Wait().ok()) {
      ADD_FAILURE() << (reply.IsReady() ? reply.Wait().status().ToString() : "no answer");
      return {};
    }
    auto results = rref::DecodeValues(
        reply.Wait()->payload,
        [&](std::vector<Tensor> tensors) {
          return autograd->UnwrapReply(context, *reply.Wait(), std::move(tensors));
        },
        [](const rref::ForkData&) -> absl::StatusOr<store::Value> { return store::Value(); });
    EXPECT_TRUE(results.ok()) << results.status();
    return rref::CollectVariables(*results);
  }

  absl::Status Backward(const ContextPtr& context, const Variables& roots,
                        BackwardOptions options = {}) {
    Future<Unit> done = autograd->Backward(context, roots, options);
    network.RunUntil(done);
    if (!done.IsReady()) return absl::UnknownError("backward hangs");
    return done.Wait().status();
  }

  FakeNetwork& network;
  IdSource ids;
  FakeClock clock;
  InlineExecutor executor;
  FakeAgent agent;
  TimerQueue timers;
  std::unique_ptr<DistAutograd> autograd;
  std::map<std::string, Function> functions;
};

Tensor Vector(std::initializer_list<float> values) {
  return Tensor::Of<float>({static_cast<int64_t>(values.size())}, values);
}

std::vector<float> Numbers(const Tensor& tensor) {
  Tensor dense = *tensor.Contiguous();
  return {dense.data<float>(), dense.data<float>() + dense.NumElements()};
}

class Collected : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override {
    gradients[leaf.key] = std::move(gradient);
    return absl::OkStatus();
  }
  std::map<GlobalId, Tensor> gradients;
};

class DistAutogradTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  DistAutogradTest()
      : network_(GetParam()),
        trainer_(network_, "trainer0", 1),
        owner0_(network_, "owner0", 2),
        owner1_(network_, "owner1", 3) {
    for (TestWorker* owner : {&trainer_, &owner0_, &owner1_}) {
      const GlobalId key{owner->agent.self().incarnation, 1'000'000};
      owner->functions["fetch"] = [this, key](TestWorker&, const ContextPtr&, const Variables&) {
        return Variables{Variable::Leaf(weights_, key, ++version_)};
      };
      owner->functions["mul"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
        return Variables{Mul(v[0], v[1])};
      };
      owner->functions["add"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
        return Variables{Add(v[0], v[1])};
      };
      owner->functions["ignore"] = [](TestWorker&, const ContextPtr&, const Variables&) {
        return Variables{Variable(Vector({7, 7}))};
      };
      owner->functions["times_weight"] = [this, key](TestWorker&, const ContextPtr&,
                                                     const Variables& v) {
        return Variables{Mul(v[0], Variable::Leaf(weights_, key, 1))};
      };
      owner->functions["nested"] = [](TestWorker& self, const ContextPtr& context,
                                      const Variables& v) {
        Variables inner = self.Call(context, "owner1", "times_weight", {Mul(v[0], 2)});
        return Variables{Mul(inner[0], v[0])};
      };
    }
  }

  GlobalId KeyOf(TestWorker& owner) { return {owner.agent.self().incarnation, 1'000'000}; }

  std::vector<float> GradientAt(TestWorker& worker, const ContextPtr& context, GlobalId key) {
    auto found = worker.autograd->Find(context->id());
    if (!found.ok()) return {};
    auto gradient = (*found)->Gradient(key);
    return gradient.ok() ? Numbers(gradient->gradient) : std::vector<float>{};
  }

  void ExpectAtRest() {
    for (TestWorker* worker : {&trainer_, &owner0_, &owner1_}) {
      EXPECT_EQ(worker->autograd->stats().running_passes, 0u) << worker->agent.self().name;
    }
  }

  FakeNetwork network_;
  TestWorker trainer_, owner0_, owner1_;
  Tensor weights_ = Vector({2, 3});
  uint64_t version_ = 0;
};

using Floats = std::vector<float>;

TEST_P(DistAutogradTest, DAG_01_ContextsAreDistinctAndGoneAfterRelease) {
  std::vector<GlobalId> ids;
  for (int i = 0; i < 200; ++i) {
    ContextPtr context = trainer_.autograd->NewContext();
    EXPECT_TRUE(trainer_.autograd->Find(context->id()).ok());
    ids.push_back(context->id());
    trainer_.autograd->Release(context->id());
    absl::Status gone = trainer_.autograd->Find(context->id()).status();
    EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(gone.message()), HasSubstr("could not find autograd context"));
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST_P(DistAutogradTest, DAG_03_SendsAndRecvsOfOneCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}), true);
  Variables out = trainer_.Call(context, "owner0", "mul", {a, b});
  ContextState& there = **owner0_.autograd->Find(context->id());
  EXPECT_EQ(context->stats().sends, 1u);
  EXPECT_EQ(context->stats().recvs, 1u);
  EXPECT_EQ(there.stats().sends, 1u);
  EXPECT_EQ(there.stats().recvs, 1u);
  auto send = context->Sends()[0];
  ASSERT_EQ(send->next().size(), 2u);
  EXPECT_EQ(send->next()[0].node, a.gradient_edge().node);
  EXPECT_EQ(send->next()[1].node, b.gradient_edge().node);
  EXPECT_NE(dynamic_cast<RecvFunction*>(out[0].gradient_edge().node.get()), nullptr);
  EXPECT_FALSE(out[0].is_leaf());
}

TEST_P(DistAutogradTest, DAG_06_NoGradNoFunctionsYetTheContextIsThere) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "mul", {Variable(Vector({1, 2})), Variable(Vector({3, 4}))});
  ContextState& there = **owner0_.autograd->Find(context->id());
  EXPECT_EQ(context->stats().sends + context->stats().recvs, 0u);
  EXPECT_EQ(there.stats().sends + there.stats().recvs, 0u);
  EXPECT_EQ(context->KnownWorkers(), std::vector<std::string>{"owner0"});
}

TEST_P(DistAutogradTest, DAG_08_DAG_23_TheGradientOfARemoteLeafLandsOnItsOwner) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  EXPECT_EQ(context->stats().sends, 0u);
  EXPECT_EQ(context->stats().recvs, 1u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(w, w))}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{4, 6}));
  EXPECT_TRUE(context->Gradients().empty());
  EXPECT_EQ(network_.Count("autograd.gradient"), 1) << "marks ride the gradient";
  EXPECT_EQ(network_.Count("autograd.mark"), 0);
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_09_DAG_11_OnlyWhatRequiresGradHasEdges) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}));
  Variables out = trainer_.Call(context, "owner0", "mul", {b, a});
  ASSERT_EQ(context->Sends()[0]->next().size(), 1u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out[0])}).ok());
  ASSERT_EQ(context->Gradients().size(), 1u);
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{3, 4}));
}

TEST_P(DistAutogradTest, DAG_12_ArgumentsThatRequireGradEqualLocalAutograd) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}), true);
  Variable once = trainer_.Call(context, "owner0", "mul", {a, b})[0];
  Variable twice = trainer_.Call(context, "owner0", "add", {once, Mul(a, a)})[0];
  Variable loss = Sum(Mul(twice, trainer_.Call(context, "owner1", "mul", {once, b})[0]));
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  Variable local = Mul(a, b);
  Collected expected;
  ASSERT_TRUE(Backward({Sum(Mul(Add(local, Mul(a, a)), Mul(local, b)))}, expected).ok());
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), Numbers(expected.gradients[a.key()]));
  EXPECT_EQ(GradientAt(trainer_, context, b.key()), Numbers(expected.gradients[b.key()]));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_13_CallsToSelf) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true);
  Variable out = trainer_.Call(context, "trainer0", "times_weight", {a})[0];
  out = trainer_.Call(context, "trainer0", "times_weight", {out})[0];
  EXPECT_EQ(context->stats().sends, 4u);
  EXPECT_EQ(context->stats().recvs, 4u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{4, 9}));
  EXPECT_EQ(GradientAt(trainer_, context, KeyOf(trainer_)), (Floats{4, 12}));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_14_ManyRoundTripsBetweenTwoOwners) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 1}), true), t = x;
  for (int i = 0; i < 6; ++i) {
    t = trainer_.Call(context, i % 2 == 0 ? "owner0" : "owner1", "mul", {t, x})[0];
  }
  ASSERT_TRUE(trainer_.Backward(context, {Sum(t)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{7, 7}));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_16_OwnersThatCallOwners) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];  // 2 · w · x²
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{8, 60}));
  EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{2, 50}));
  EXPECT_GT(network_.Count("autograd.mark"), 0);
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_18_DAG_19_SeveralRootsAndOneTwice) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner1", "fetch", {})[0];
  Variable loss = Sum(Mul(b, 3));
  ASSERT_TRUE(trainer_.Backward(context, {Sum(a), loss, loss}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{1, 1}));
  EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{6, 6}));
}

TEST_P(DistAutogradTest, DAG_20_AnIgnoredArgumentHasNoGradientAndInFastModeZero) {
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable a(Vector({1, 2}), true), b(Vector({1, 2}), true);
    Variable out = trainer_.Call(context, "owner0", "mul", {a, a})[0];
    owner0_.functions["first"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Mul(v[0], 2)};
    };
    Variable first = trainer_.Call(context, "owner0", "first", {out, b})[0];
    BackwardOptions options;
    options.mode = mode;
    ASSERT_TRUE(trainer_.Backward(context, {Sum(first)}, options).ok());
    EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{4, 8}));
    EXPECT_EQ(GradientAt(trainer_, context, b.key()),
              mode == BackwardMode::kFast ? (Floats{0, 0}) : Floats{});
  }
}

TEST_P(DistAutogradTest, DAG_24_TwoFetchesOfOneValueAddUp) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner0", "fetch", {})[0];
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Add(a, Mul(b, 2)))}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{3, 3}));
  EXPECT_EQ((*owner0_.autograd->Find(context->id()))->Gradients()[0].leaf.version, 1u)
      << "the oldest version that was read";
}

TEST_P(DistAutogradTest, DAG_26_ContextsNeverMix) {
  ContextPtr one = trainer_.autograd->NewContext(), two = owner1_.autograd->NewContext();
  Variable a = trainer_.Call(one, "owner0", "fetch", {})[0];
  Variable b = owner1_.Call(two, "owner0", "fetch", {})[0];
  auto first = trainer_.autograd->Backward(one, {Sum(a)}, {});
  auto second = owner1_.autograd->Backward(two, {Sum(Mul(b, 5))}, {});
  network_.RunAll();
  ASSERT_TRUE(first.IsReady() && first.Wait().ok());
  ASSERT_TRUE(second.IsReady() && second.Wait().ok());
  EXPECT_EQ(GradientAt(owner0_, one, KeyOf(owner0_)), (Floats{1, 1}));
  EXPECT_EQ(GradientAt(owner0_, two, KeyOf(owner0_)), (Floats{5, 5}));
}

TEST_P(DistAutogradTest, DAG_28_DAG_29_PassesAccumulate) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = Sum(trainer_.Call(context, "owner0", "nested", {x})[0]);
  BackwardOptions options;
  options.retain_graph = true;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(trainer_.Backward(context, {out}, options).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{80, 600}));
}

TEST_P(DistAutogradTest, DAG_30_WithoutRetainASecondPassFailsAndChangesNothing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = Sum(trainer_.Call(context, "owner0", "mul", {x, x})[0]);
  ASSERT_TRUE(trainer_.Backward(context, {out}).ok());
  absl::Status again = trainer_.Backward(context, {out});
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("error on owner0"));
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 10}));
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_31_WithoutSavedValuesASecondPassWorks) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "add", {x, x})[0];
  owner0_.functions["sum"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
    return Variables{Sum(v[0])};
  };
  Variable loss = trainer_.Call(context, "owner0", "sum", {out})[0];
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{4, 4}));
}

TEST_P(DistAutogradTest, DAG_32_WithoutAnyCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(x, x))}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 10}));
}

TEST_P(DistAutogradTest, DAG_33_MistakesOfTheCaller) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(trainer_.Backward(context, {}).code(), invalid);
  EXPECT_EQ(trainer_.Backward(context, {Variable(Vector({1}))}).code(), invalid);
  EXPECT_EQ(trainer_.Backward(context, {Mul(x, 2)}).code(), invalid);
  BackwardOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(trainer_.Backward(context, {Sum(Mul(x, 2))}, options).code(), invalid);
  trainer_.autograd->Release(context->id());
  EXPECT_EQ(trainer_.Backward(context, {Sum(Mul(x, 2))}).code(), absl::StatusCode::kNotFound);
}

TEST_P(DistAutogradTest, DAG_38_AnOwnerThatIsGoneIsAnErrorNotAHang) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner1", "fetch", {})[0];
  network_.SetFilter([](const std::string&, const std::string& to, const rpc::Request&) {
    return to == "owner1" ? absl::UnavailableError("owner1 is dead") : absl::OkStatus();
  });
  absl::Status status = trainer_.Backward(context, {Sum(Mul(a, b))});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner1"));
  network_.RunAll();
  ExpectAtRest();
  EXPECT_TRUE(owner0_.autograd->Find(context->id()).ok());
}

TEST_P(DistAutogradTest, DAG_39_ReleaseDuringAPass) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  auto done = trainer_.autograd->Backward(context, {Sum(out)}, {});
  network_.RunOne();
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  ASSERT_TRUE(done.IsReady());
  ExpectAtRest();
  for (TestWorker* worker : {&trainer_, &owner0_, &owner1_}) {
    EXPECT_EQ(worker->autograd->stats().contexts, 0u);
  }
}

TEST_P(DistAutogradTest, DAG_40_AFailureReachesWhoeverWaits) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  network_.SetFilter([](const std::string& from, const std::string&, const rpc::Request& request) {
    return from == "owner1" && request.method == "autograd.gradient" ? absl::UnavailableError("cut")
                                                                     : absl::OkStatus();
  });
  EXPECT_FALSE(trainer_.Backward(context, {Sum(out)}).ok());
  network_.RunAll();
  ExpectAtRest();
  EXPECT_TRUE(context->Gradients().empty());
}

TEST_P(DistAutogradTest, DAG_41_to_44_UnusedResultsCostNothing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable unused = trainer_.Call(context, "owner0", "mul", {x, x})[0];
  trainer_.Call(context, "owner0", "fetch", {});
  trainer_.Call(context, "owner1", "nested", {x});
  Variable used = trainer_.Call(context, "owner0", "fetch", {})[0];
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(used, 2))}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{2, 2}));
  EXPECT_TRUE(context->Gradients().empty());
  EXPECT_EQ(network_.Count("autograd.gradient"), 1);
}

TEST_P(DistAutogradTest, DAG_41_FastModeFailsAtItsDeadlineAndNamesWhatIsMissing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  trainer_.Call(context, "owner0", "mul", {x, x});
  Variable used = trainer_.Call(context, "owner1", "fetch", {})[0];
  GlobalId unused = context->Sends()[0]->message();
  BackwardOptions options;
  options.mode = BackwardMode::kFast;
  auto done = trainer_.autograd->Backward(context, {Sum(used)}, options);
  network_.RunAll();
  EXPECT_FALSE(done.IsReady());
  trainer_.clock.Advance(absl::Seconds(61));
  trainer_.timers.Poll();
  EXPECT_EQ(done.Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(done.Wait().status().message()), HasSubstr(unused.ToString()));
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_45_ReleaseReachesEveryWorker) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}))});
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  for (TestWorker* worker : {&trainer_, &owner0_, &owner1_}) {
    EXPECT_EQ(worker->autograd->stats().contexts, 0u) << worker->agent.self().name;
  }
}

TEST_P(DistAutogradTest, DAG_47_TheCreatorsSessionTakesItsContextsAlong) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}), true)});
  network_.EndSessionsOf("trainer0");
  network_.RunAll();
  EXPECT_EQ(owner0_.autograd->stats().contexts, 0u);
  EXPECT_EQ(owner1_.autograd->stats().contexts, 0u);
}

TEST_P(DistAutogradTest, DAG_47_WhatIsLeftOfAContextFailsWithTheReasonOfTheLostSession) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto running = trainer_.autograd->Backward(context, {Sum(Mul(w, w))}, {});
  network_.EndSessionsOf("trainer0");
  EXPECT_EQ(trainer_.autograd->Backward(context, {Sum(w)}, {}).Wait().status().code(),
            absl::StatusCode::kAborted);
  network_.RunUntil(running);
  EXPECT_EQ(running.Wait().status().code(), absl::StatusCode::kAborted)
      << "owner0 itself knows only that it has no such context: " << running.Wait().status();
  EXPECT_THAT(std::string(running.Wait().status().message()), HasSubstr("the session on owner0"));
  EXPECT_EQ(trainer_.autograd->WrapRequest(context, "owner1", {}).status().code(),
            absl::StatusCode::kAborted);
  ContextPtr next = trainer_.autograd->NewContext();
  Variable again = trainer_.Call(next, "owner0", "fetch", {})[0];
  EXPECT_TRUE(trainer_.Backward(next, {Sum(again)}).ok());
}

TEST_P(DistAutogradTest, DAG_50_TwoBackwardsAtOnceInOneContext) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto first = trainer_.autograd->Backward(context, {Sum(Mul(a, 2))}, {});
  auto second = trainer_.autograd->Backward(context, {Sum(Mul(a, 3))}, {});
  ASSERT_TRUE(second.IsReady());
  EXPECT_EQ(second.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  network_.RunUntil(first);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{2, 2}));
}

TEST_P(DistAutogradTest, DAG_57_OutsideAContextResultsAreConstants) {
  Variable w = trainer_.Call(nullptr, "owner0", "fetch", {})[0];
  EXPECT_FALSE(w.requires_grad());
}

TEST_P(DistAutogradTest, GradientsThatDoNotFitChangeNothing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto send = (*owner0_.autograd->Find(context->id()))->Sends()[0];
  EXPECT_TRUE(send->CheckGradients({}).ok());
  EXPECT_TRUE(send->CheckGradients({Vector({1, 2})}).ok());
  for (const Tensors& wrong : {Tensors{Vector({1, 2, 3})}, Tensors{Tensor::Of<double>({2}, {1, 2})},
                               Tensors{Vector({1, 2}), Vector({1, 2})}}) {
    EXPECT_EQ(send->CheckGradients(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(DistAutogradTest, DAG_58_SendFunctionRefusesNothingAtAll) {
  Variable x(Vector({1, 5}), true);
  SendFunction send({1, 1}, {x});
  PassContext pass;
  EXPECT_EQ(send.Apply(pass, {Tensor()}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(send.Apply(pass, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(send.Apply(pass, {Vector({1, 1})}).ok());
}

TEST_P(DistAutogradTest, ALocalBackwardThatReachesAMessageIsAnError) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  Collected sink;
  EXPECT_EQ(Backward({Sum(w)}, sink).code(), absl::StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Orders, DistAutogradTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
