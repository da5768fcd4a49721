// Calls through the public API: modes, errors, asynchronous functions, chains, values.

#include "client/calls.h"

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "client/runtime_of.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/carrier/faulty/tcp_route.h"
#include "core/tensor/ops/shape_ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/function_world.h"

namespace psd {
namespace {

using services::FunctionCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CallsTest = FunctionWorld;

TEST_F(CallsTest, RPC_03_RPC_04_AStartThatFailsLeavesTheOthersAlone) {
  WorkerOptions taken;
  taken.name = "trainer0";
  taken.owners = {owner0_.address()};
  EXPECT_EQ(Worker::Start(taken).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
}

TEST_F(CallsTest, RPC_05_RREF_48_AWorkerStartsAgainWithNothingOfItsFormerLife) {
  RRef former = Must(trainer_->Remote("owner0", Named("echo"), {1}));
  Must(trainer_->ToHere({former}));
  ASSERT_TRUE(trainer_->Shutdown().ok());
  trainer_ = Start("trainer0");
  EXPECT_EQ(RuntimeOf(*trainer_).rrefs().stats().users, 0u);
  EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
  {
    RRef again = Must(trainer_->Remote("owner0", Named("echo"), {2}));
    EXPECT_EQ(IntOf(Must(trainer_->ToHere({again}))[0]), 2);
    EXPECT_EQ(trainer_->ToHere({former}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  WaitUntilReleased();
}

TEST_F(CallsTest, RPC_57_AWorkerMayLeaveStraightAfterItsStart) {
  auto other = Start("trainer1");
  EXPECT_TRUE(other->Shutdown(absl::ZeroDuration()).ok());
  EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
}

TEST_F(CallsTest, RPC_09_RPC_10_InfosAreValuesAndCallees) {
  const WorkerInfo me = trainer_->Info();
  EXPECT_EQ(me.name, "trainer0");
  EXPECT_EQ(me.incarnation, RuntimeOf(*trainer_).incarnation());
  Values back = Must(trainer_->RpcSync("owner0", Named("echo"), {me.ToValue()}));
  const WorkerInfo same = Must(WorkerInfo::FromValue(back[0]));
  EXPECT_EQ(same, me);
  EXPECT_EQ(same.rank, me.rank);
  EXPECT_EQ(absl::Hash<WorkerInfo>()(same), absl::Hash<WorkerInfo>()(me));
  WorkerInfo restarted = me;
  ++restarted.incarnation;
  EXPECT_NE(restarted, me);
  for (const Value& bad : {Value(), Value(7), Value::OfMap({{"name", "x"}}),
                           Value::OfMap({{"name", 1}, {"incarnation", 1}, {"rank", 1}}),
                           Value::OfMap({{"name", "x"}, {"incarnation", 1}, {"rank", -1}})}) {
    EXPECT_EQ(WorkerInfo::FromValue(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const WorkerInfo owner{"owner0", owner0_.runtime().incarnation(), 0};
  EXPECT_EQ(IntOf(Must(trainer_->RpcSync(owner, Named("add"), {1, 2}))[0]), 3);
  EXPECT_EQ(IntOf(Must(trainer_->RpcAsync(me, Named("add"), {1, 2}).Wait())[0]), 3);
  RRef remote = Must(trainer_->Remote(owner, Named("add"), {1, 2}));
  EXPECT_EQ(IntOf(Must(trainer_->ToHere({remote}))[0]), 3);
  const WorkerInfo nobody{"owner9", 1, 9};
  EXPECT_EQ(trainer_->Remote(nobody, Named("add"), {1, 2}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(trainer_->Remote(-1, Named("add"), {1, 2}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(trainer_->Remote(7, Named("add"), {1, 2}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CallsTest, RPC_14_RREF_03_AWorkerAloneUsesAllModesOnItself) {
  WorkerOptions options;
  options.name = "alone";
  options.functions = offer_.Functions();
  auto alone = Must(Worker::Start(std::move(options)));
  EXPECT_EQ(Must(alone->Infos()), std::vector<WorkerInfo>{alone->Info()});
  for (const Callee& self : {Callee("alone"), Callee(0), Callee(alone->Info())}) {
    EXPECT_EQ(IntOf(Must(alone->RpcSync(self, Named("add"), {1, 2}))[0]), 3);
    EXPECT_EQ(IntOf(Must(alone->RpcAsync(self, Named("add"), {3, 4}).Wait())[0]), 7);
    RRef sum = Must(alone->Remote(self, Named("add"), {5, 6}));
    EXPECT_TRUE(sum.is_owner());
    EXPECT_EQ(IntOf(Must(alone->ToHere({sum}))[0]), 11);
    EXPECT_EQ(IntOf(Must(alone->LocalValue(sum))), 11);
    const rref::RRefContext::Stats stats = RuntimeOf(*alone).rrefs().stats();
    EXPECT_EQ(stats.owners + stats.forks + stats.users + stats.pending_users, 0u);
  }
  while (RuntimeOf(*alone).store().stats().anonymous > 0) std::this_thread::yield();
  RRef failed = Must(alone->Remote("alone", Named("fail"), {}));
  EXPECT_EQ(alone->ToHere({failed}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(CallsTest, AFetchFromSeveralOwnersFailsWithTheFirstError) {
  RRef parked = Must(trainer_->Remote("owner0", Named("park"), {}));
  Promise<Values> answer = parking_.Take();
  RRef failed = Must(trainer_->Remote("owner1", Named("fail"), {}));
  EXPECT_EQ(trainer_->ToHere({parked, failed}).status().code(), absl::StatusCode::kOutOfRange);
  answer.Set(Values{7});
  EXPECT_EQ(IntOf(Must(trainer_->ToHere({parked}))[0]), 7);
}

TEST_F(CallsTest, RPC_15_AFunctionKnowsItsWorkerAndItsCaller) {
  for (const char* callee : {"owner0", "owner1", "trainer0"}) {
    Values who = Must(trainer_->RpcSync(callee, Named("who"), {}));
    EXPECT_EQ(*who[0].As<std::string>(), callee);
    EXPECT_EQ(*who[1].As<std::string>(), "trainer0");
  }
  Values nested = Must(trainer_->RpcSync("owner0", Named("call"), {"owner1", "who"}));
  EXPECT_EQ(*nested[0].As<std::string>(), "owner1");
  EXPECT_EQ(*nested[1].As<std::string>(), "owner0");
}

TEST_F(CallsTest, RPC_17_AFunctionWithoutResultIsAwaited) {
  EXPECT_TRUE(Must(trainer_->RpcSync("owner0", Named("nothing"), {})).empty());
  RRef none = Must(trainer_->Remote("owner0", Named("nothing"), {}));
  EXPECT_TRUE(Must(trainer_->ToHere({none}))[0].IsNone());
  Future<Values> parked = trainer_->RpcAsync("owner0", Named("park"), {});
  Promise<Values> answer = parking_.Take();
  EXPECT_FALSE(parked.IsReady());
  answer.Set(Values{});
  EXPECT_TRUE(Must(parked.Wait()).empty());
}

TEST_F(CallsTest, RPC_19_AFunctionsErrorArrivesWholeWithItsWorkerAndIsLoggedThere) {
  std::ostringstream log;
  worker::RuntimeOptions options = offer_.Options();
  options.logger = NewStreamLogger(log, LogLevel::kWarning);
  absl::Status failed;
  {
    TestOwner logging("logging", std::move(options));
    auto trainer = StartTrainer("trainer1", {logging.address()});
    failed = trainer->RpcSync("logging", Named("fail"), {}).status();
    EXPECT_EQ(trainer->RpcAsync("logging", Named("fail"), {}).Wait().status(), failed);
  }
  EXPECT_EQ(failed.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("first line\n\tsecond \"line\""));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("'fail' on logging"));
  EXPECT_EQ(GetDetail(failed)->worker, "logging");
  EXPECT_THAT(log.str(), HasSubstr("function_failed"));
  EXPECT_THAT(log.str(), HasSubstr("trainer1"));
}

TEST_F(CallsTest, RPC_19_AFunctionsErrorKeepsItsRemedy) {
  worker::RuntimeOptions options;
  ASSERT_TRUE(options.functions
                  .Register("full",
                            [](const services::FunctionCall&, const Values&) {
                              return absl::StatusOr<Values>(
                                  WithRemedy(absl::ResourceExhaustedError("it is full"),
                                             "take something out"));
                            })
                  .ok());
  TestOwner advising("advising", std::move(options));
  const absl::Status failed = StartTrainer("trainer1", {advising.address()})
                                  ->RpcSync("advising", Named("full"), {})
                                  .status();
  ASSERT_TRUE(GetDetail(failed).has_value()) << failed;
  EXPECT_EQ(GetDetail(failed)->worker, "advising");
  EXPECT_EQ(GetDetail(failed)->object, "full");
  EXPECT_EQ(GetDetail(failed)->remedy, "take something out");
}

TEST_F(CallsTest, RPC_27_OnReadyRunsAfterCompletion) {
  Future<Values> call = trainer_->RpcAsync("owner0", Named("park"), {});
  Promise<int64_t> seen;
  call.OnReady([seen](const absl::StatusOr<Values>& values) { seen.Set(IntOf((*values)[0])); });
  Promise<Values> answer = parking_.Take();
  EXPECT_FALSE(seen.future().IsReady());
  answer.Set(Values{7});
  EXPECT_EQ(*seen.future().Wait(), 7);
}

TEST_F(CallsTest, RPC_27_ACallbackMayWaitForAnotherCall) {
  Promise<int64_t> seen;
  Future<Values> call = trainer_->RpcAsync("owner0", Named("add"), {1, 2});
  call.OnReady([this, seen](const absl::StatusOr<Values>& values) {
    auto more = trainer_->RpcSync("owner0", Named("add"), {IntOf((*values)[0]), 4});
    seen.Set(more.ok() ? absl::StatusOr<int64_t>(IntOf((*more)[0])) : more.status());
  });
  EXPECT_EQ(Must(seen.future().Wait()), 7);
}

TEST_F(CallsTest, RPC_27_TheLinkStaysUpWhileACallbackWaits) {
  const std::string address = owner0_.address().address;
  carrier::TcpRoute route(address);
  auto routed = StartTrainer("routed", {{"owner0", route.address()}});
  Promise<absl::StatusCode> seen;
  routed->RpcAsync("owner0", Named("park"), {}).OnReady([&](const absl::StatusOr<Values>&) {
    Future<Values> parked = routed->RpcAsync("owner0", Named("park"), {});
    parking_.Take().Set(Values{2});
    seen.Set(parked.Wait().status().code());
  });
  Promise<Values> first = parking_.Take();
  // On a busy machine the owner may have been dialled more than once.
  const uint64_t connections = route.connections();
  first.Set(Values{1});
  EXPECT_EQ(Must(seen.future().Wait()), absl::StatusCode::kOk);
  EXPECT_EQ(route.connections(), connections) << "a link that was closed is dialled again";
}

TEST_F(CallsTest, RPC_27_ACallbackMayCallAgainAfterATimeout) {
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  Promise<absl::StatusCode> seen;
  trainer_->RpcAsync("owner0", Named("park"), {}, shortly)
      .OnReady([&](const absl::StatusOr<Values>& first) {
        EXPECT_EQ(first.status().code(), absl::StatusCode::kDeadlineExceeded);
        seen.Set(trainer_->RpcSync("owner0", Named("park"), {}, shortly).status().code());
      });
  EXPECT_EQ(Must(seen.future().Wait()), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CallsTest, RPC_28_CallbacksOfReferencesMayWaitToo) {
  Promise<absl::StatusCode> seen;
  RRef remote = Must(trainer_->Remote("owner0", Named("park"), {}));
  remote.confirmed().OnReady([&](const absl::StatusOr<Unit>&) {
    seen.Set(trainer_->RpcSync("owner0", Named("add"), {1, 2}).status().code());
  });
  parking_.Take().Set(Values{1});
  EXPECT_EQ(Must(seen.future().Wait()), absl::StatusCode::kOk);
}

// Each of the two calls spins until the other one runs, and psd cannot see this wait. If a function
// ran on the thread that reads the network, the second call would never be read.
TEST(AsynchronousFunctionTest, RPC_38_ItsCodeRunsOnNoThreadOfTheNetwork) {
  std::atomic<int> inside{0};
  worker::RuntimeOptions options;
  ASSERT_TRUE(options.functions
                  .RegisterAsync("meet",
                                 [&](const FunctionCall&, Values) {
                                   ++inside;
                                   while (inside < 2) std::this_thread::yield();
                                   return Future<Values>::Ready(Values{});
                                 })
                  .ok());
  TestOwner owner("owner", std::move(options));
  auto trainer = StartTrainer("trainer", {owner.address()});
  const Function meet = Function::Registered("meet");
  EXPECT_TRUE(
      WaitAll<Values>({trainer->RpcAsync("owner", meet, {}), trainer->RpcAsync("owner", meet, {})})
          .ok());
}

TEST_F(CallsTest, RPC_29_RPC_30_SeveralCallsAreWaitedForTogether) {
  std::vector<Future<Values>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(trainer_->RpcAsync(i % 2 ? "owner0" : "owner1", Named("add"), {i, i}));
  }
  std::vector<Values> sums = Must(WaitAll(calls));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(IntOf(sums[i][0]), 2 * i);
  calls[3] = trainer_->RpcAsync("owner0", Named("fail"), {});
  calls[4] = trainer_->RpcAsync("owner0", Named("park"), {});
  EXPECT_EQ(WaitAll(calls).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_FALSE(calls[4].IsReady()) << "the error did not wait for the slowest";
  parking_.Take().Set(Values{});
  EXPECT_TRUE(calls[4].Wait().ok());
}

TEST_F(CallsTest, RPC_31_AScopeWaitsForItsCallsTellsTheFirstErrorAndForgetsThem) {
  CallScope scope(*trainer_);
  Future<Values> parked = scope.RpcAsync("owner0", Named("park"), {});
  Must(trainer_->RpcSync("owner0", Named("nothing"), {}));
  EXPECT_EQ(scope.size(), 1u) << "only what is called through it";
  std::thread answers([&] { parking_.Take().Set(Values{}); });
  EXPECT_TRUE(scope.Wait().ok());
  answers.join();
  EXPECT_TRUE(parked.IsReady());
  scope.RpcAsync("owner0", Named("add"), {1, 2});
  scope.RpcAsync("owner0", Named("fail"), {});
  CallOptions shortly;
  shortly.timeout = absl::Milliseconds(20);
  scope.RpcAsync("owner1", Named("park"), {}, shortly);
  EXPECT_EQ(scope.Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(scope.size(), 0u);
  EXPECT_TRUE(scope.Wait().ok());
  scope.RpcAsync("owner1", Named("park"), {}, shortly);
  EXPECT_EQ(scope.Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CallsTest, RPC_32_RPC_33_TimeoutsOfTheWorkerAndOfTheCall) {
  EXPECT_EQ(trainer_->default_timeout(), absl::Seconds(60));
  Future<Values> before = trainer_->RpcAsync("owner0", Named("park"), {});
  Promise<Values> answer = parking_.Take();
  ASSERT_TRUE(trainer_->SetDefaultTimeout(absl::Milliseconds(20)).ok());
  EXPECT_EQ(trainer_->default_timeout(), absl::Milliseconds(20));
  CallOptions none;
  none.timeout = absl::ZeroDuration();
  Future<Values> patient = trainer_->RpcAsync("owner0", Named("park"), {}, none);
  Promise<Values> late = parking_.Take();
  // It may time out before its function begins, so nothing is taken from the parking after it.
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("park"), {}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(before.IsReady() || patient.IsReady());
  answer.Set(Values{1});
  EXPECT_EQ(IntOf(Must(before.Wait())[0]), 1);
  late.Set(Values{2});
  EXPECT_EQ(IntOf(Must(patient.Wait())[0]), 2);
  EXPECT_EQ(trainer_->SetDefaultTimeout(absl::Seconds(-1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CallsTest, RPC_35_ANegativeTimeoutIsRefusedWhereverItIsGiven) {
  RRef own = Must(trainer_->Remote("trainer0", Named("echo"), {1}));
  RRef table = Must(trainer_->GetOrCreate("owner0", "table", Zeros({2, 2}), {true, true}));
  CallOptions past;
  past.timeout = -absl::Nanoseconds(1);
  const auto refused = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  refused(trainer_->RpcSync("owner0", Named("nothing"), {}, past).status());
  refused(trainer_->Remote("owner0", Named("nothing"), {}, past).status());
  refused(trainer_->ToHere({own}, past).status());
  refused(trainer_->ToHereAsync({own}, past).Wait().status());
  refused(trainer_->Pull({table}, past).status());
  refused(trainer_->LookUpRows({{table, Tensor::Of<int64_t>({1}, {0})}}, past).status());
}

TEST_F(CallsTest, RPC_19_AnExceptionIsAnAnswerAndTheOwnerServesOn) {
  const auto told = [this](const std::string& function) {
    const absl::Status status = trainer_->RpcSync("owner0", Named(function), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << function;
    EXPECT_THAT(std::string(status.message()), HasSubstr("function '" + function + "' on owner0"));
    EXPECT_LT(status.message().size(), 2000u);
    EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
    return std::string(status.message());
  };
  EXPECT_THAT(told("throw"), HasSubstr("threw std::runtime_error: worn out"));
  EXPECT_THAT(told("throw_int"), HasSubstr("threw int"));
  EXPECT_THAT(told("throw_at_once"), HasSubstr("threw std::runtime_error: worn out"));
  RRef made = Must(trainer_->Remote("owner0", Named("throw"), {}));
  EXPECT_EQ(trainer_->ToHere({made}).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CallsTest, AContextThatWasMovedFromIsAnError) {
  Context context = Must(trainer_->NewContext());
  Context other = Must(trainer_->NewContext());
  other = std::move(context);
  EXPECT_FALSE(other.id().IsNone());
  EXPECT_TRUE(context.id().IsNone()) << "not the context that `other` was before";
  CallOptions options;
  options.context = &context;
  const auto refused = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  };
  RRef value = Must(trainer_->Remote("owner0", Named("echo"), {1}));
  refused(trainer_->RpcSync("owner0", Named("nothing"), {}, options).status());
  refused(trainer_->Remote("owner0", Named("nothing"), {}, options).status());
  refused(trainer_->ToHere({value}, context).status());
  Variable leaf(Tensor::Scalar(1.0f), true);
  refused(context.Backward({leaf * 2}));
  refused(context.Backward(value));
  refused(context.BackwardFrom({leaf}, {Tensor::Scalar(1.0f)}));
  refused(context.PushGradient(value, Tensor::Scalar(1.0f), 1));
  refused(context.Gradient(leaf).status());
  refused(context.Gradient(value).status());
  refused(context.SparseGradient(value).status());
  EXPECT_TRUE(context.id().IsNone());
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{}, {w}));
  refused(optimizer->Step(context));
}

// ---- chains

TEST_F(CallsTest, RPC_36_RPC_38_CallsAndAsynchronousCallsOnAndOn) {
  for (const char* call : {"call", "call_async"}) {
    Values arguments{"add", 1, 2};
    for (int hop = 0; hop < 20; ++hop) {
      const char* next = hop % 3 == 0 ? "owner1" : hop % 3 == 1 ? "trainer0" : "owner0";
      arguments.insert(arguments.begin(), {Value(next)});
      if (hop < 19) arguments.insert(arguments.begin(), {Value(call)});
    }
    EXPECT_EQ(IntOf(Must(trainer_->RpcSync("owner0", Named(call), arguments))[0]), 3) << call;
  }
}

TEST_F(CallsTest, RPC_38_AnAsynchronousFunctionWorksInAllModes) {
  Future<Values> call = trainer_->RpcAsync("owner0", Named("park"), {});
  RRef remote = Must(trainer_->Remote("owner0", Named("park"), {}));
  std::vector<Future<Values>> fan;
  for (int i = 0; i < 20; ++i) fan.push_back(trainer_->RpcAsync("owner1", Named("park"), {}));
  EXPECT_FALSE(call.IsReady());
  EXPECT_FALSE(remote.confirmed().IsReady());
  for (int i = 0; i < 22; ++i) parking_.Take().Set(Values{5});
  EXPECT_EQ(IntOf(Must(call.Wait())[0]), 5);
  EXPECT_EQ(IntOf(Must(trainer_->ToHere({remote}))[0]), 5);
  for (const Values& values : Must(WaitAll(fan))) EXPECT_EQ(IntOf(values[0]), 5);
}

TEST_F(CallsTest, RPC_40_AnAsynchronousErrorOrAnAbandonedPromiseFailsTheCaller) {
  Future<Values> fails = trainer_->RpcAsync("owner0", Named("park"), {});
  parking_.Take().Set(absl::DataLossError("worn out"));
  EXPECT_EQ(fails.Wait().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(fails.Wait().status().message()), HasSubstr("worn out"));
  Future<Values> abandoned = trainer_->RpcAsync("owner0", Named("park"), {});
  Promise<Values>(parking_.Take());
  EXPECT_EQ(abandoned.Wait().status().code(), absl::StatusCode::kInternal);
}

TEST_F(CallsTest, RPC_37_WhatAFunctionStartedAndLeftCompletesWhileItsStarterDrains) {
  // A function makes twenty hops between two owners, and no hop waits for the next one.
  std::atomic<int> hops{0};
  Promise<Unit> end;
  auto functions = [&](const std::string& next) {
    FunctionRegistry registry;
    EXPECT_TRUE(registry
                    .Register("hop",
                              [&hops, end, next](const FunctionCall& call,
                                                 Values arguments) -> absl::StatusOr<Values> {
                                ++hops;
                                const int64_t left = IntOf(arguments[0]);
                                if (left > 0) {
                                  call.RpcAsync(next, Named("hop"), {Value(left - 1)});
                                } else {
                                  end.Set(Unit{});
                                }
                                return Values{};
                              })
                    .ok());
    return registry;
  };
  worker::RuntimeOptions a_options, b_options;
  a_options.functions = functions("b");
  b_options.functions = functions("a");
  TestOwner a("a", std::move(a_options)), b("b", std::move(b_options));
  a.runtime().agent().AddPeer("b", b.address().address);
  b.runtime().agent().AddPeer("a", a.address().address);
  auto starter = StartTrainer("starter", {a.address()});
  Must(starter->RpcSync("a", Named("hop"), {20}));
  ASSERT_TRUE(starter->Shutdown().ok());
  ASSERT_TRUE(end.future().Wait().ok());
  EXPECT_EQ(hops, 21);
}

TEST_F(CallsTest, RPC_58_RREF_52_CallsToADeadWorkerFail) {
  auto doomed = std::make_unique<TestOwner>("doomed", offer_.Options());
  RuntimeOf(*trainer_).agent().AddPeer("doomed", doomed->address().address);
  Must(trainer_->RpcSync("doomed", Named("nothing"), {}));
  doomed.reset();
  EXPECT_FALSE(trainer_->RpcSync("doomed", Named("nothing"), {}).ok());
  auto remote = trainer_->Remote("doomed", Named("nothing"), {});
  ASSERT_TRUE(remote.ok());
  EXPECT_FALSE(trainer_->ToHere({*remote}).ok());
  EXPECT_FALSE(remote->confirmed().Wait().ok());
}

TEST_F(CallsTest, RPC_59_ManyCallsOfEveryWorkerAreOutstandingAtOnce) {
  std::vector<Future<Values>> calls;
  Tensor heavy = Must(Tensor::Full({256, 1024}, DType::kF32, 1));
  auto call_all = [&](worker::Runtime& from, const std::string& to) {
    for (int i = 0; i < 1000; ++i) calls.push_back(CallOn(from, to, "add", {i, 1}));
    for (int i = 0; i < 20; ++i) calls.push_back(CallOn(from, to, "echo", {heavy}));
  };
  call_all(RuntimeOf(*trainer_), "owner0");
  call_all(owner0_.runtime(), "owner1");
  call_all(owner1_.runtime(), "trainer0");
  std::vector<Values> answers = Must(WaitAll(calls));
  for (int worker = 0; worker < 3; ++worker) {
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(IntOf(answers[1020 * worker + i][0]), i + 1);
    for (int i = 1000; i < 1020; ++i) {
      EXPECT_EQ(answers[1020 * worker + i][0].As<Variable>()->tensor().shape(), heavy.shape());
    }
  }
}

// ---- values

TEST_F(CallsTest, RPC_11_RPC_47_ValuesOfEveryShapeComeBackAsTheyWere) {
  Tensor empty = Must(Tensor::Full({0, 0}, DType::kF32, 0));
  Tensor pair = Tensor::Of<float>({2}, {1, 2});
  Values sent{1,
              2.5,
              true,
              "text",
              Value(),
              empty,
              Value::OfList({pair, Value::OfMap({{"again", pair}, {"list", Value::OfList({3})}})})};
  Values back = Must(trainer_->RpcSync("owner0", Named("echo"), sent));
  ASSERT_EQ(back.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(back[i].KindName(), sent[i].KindName());
  const Value::List& list = *back[6].AsList();
  EXPECT_THAT(Elements(list[0].As<Variable>()->tensor()), ElementsAre(1, 2));
  const Value::Map& map = *list[1].AsMap();
  EXPECT_THAT(Elements(map[0].second.As<Variable>()->tensor()), ElementsAre(1, 2));
  EXPECT_THAT(IntsOf(map[1].second), ElementsAre(3));
}

class Counter : public store::Object {
 public:
  std::string TypeName() const override { return "counter"; }
};

TEST_F(CallsTest, RPC_42_WhatCannotTravelIsAnErrorOnEitherWay) {
  static_assert(!std::is_constructible_v<Value, Future<Values>>, "a future is no value");
  const Value object{std::shared_ptr<store::Object>(std::make_shared<Counter>())};
  EXPECT_EQ(trainer_->RpcSync("owner0", Named("echo"), {object}).status().code(),
            absl::StatusCode::kInvalidArgument);
  Future<Values> answered = trainer_->RpcAsync("owner0", Named("park"), {});
  parking_.Take().Set(Values{object});
  EXPECT_EQ(answered.Wait().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CallsTest, RPC_43_AStridedTensorArrivesWithItsElements) {
  Tensor matrix = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  Tensor transposed = Must(ops::Transpose(matrix, 0, 1));
  Values back = Must(trainer_->RpcSync("owner0", Named("echo"), {transposed}));
  EXPECT_THAT(Elements(back[0].As<Variable>()->tensor()), ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST_F(CallsTest, RPC_49_RPC_50_ArgumentsArePassedByValueAndSafeAtOnce) {
  for (const char* callee : {"owner0", "trainer0"}) {
    Future<Values> call;
    {
      Values arguments{Value::OfList({1, Tensor::Of<float>({2}, {1, 2})})};
      call = trainer_->RpcAsync(callee, Named("echo"), arguments);
      arguments[0] = Value::OfList({});
    }  // the caller keeps no reference
    Values back = Must(call.Wait());
    EXPECT_THAT(Elements(back[0].AsList()->at(1).As<Variable>()->tensor()), ElementsAre(1, 2));
  }
}

}  // namespace
}  // namespace psd
