// Workers that find each other through the registrar: infos, barriers, all-gathers and shutdown.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/function_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

class GroupTest : public ::testing::Test {
 protected:
  GroupTest() {
    server::DaemonConfig config;
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    daemon_ = Must(server::Server::Create(config, {offer_.Functions()}, NewNullLogger()));
    address_ = Must(daemon_->Start());
  }

  WorkerOptions Options(const std::string& name, uint32_t group_size = 0) {
    WorkerOptions options;
    options.name = name;
    options.owners = {{"owner0", address_}};
    options.group_size = group_size;
    options.functions = offer_.Functions();
    return options;
  }
  std::unique_ptr<Worker> Start(const std::string& name, uint32_t group_size = 0) {
    return Must(Worker::Start(Options(name, group_size)));
  }
  std::unique_ptr<Worker> StartListening(const std::string& name) {
    WorkerOptions options = Options(name);
    options.listen = "127.0.0.1:0";
    return Must(Worker::Start(std::move(options)));
  }
  static Function Named(const std::string& name) { return Function::Registered(name); }

  int started_ = 0;
  Offer offer_;
  Parking& parking_ = *offer_.parking;
  std::unique_ptr<server::Server> daemon_;
  std::string address_;
};

TEST_F(GroupTest, RPC_01_RPC_07_RPC_08_AfterItsStartAWorkerKnowsAllAndCalls) {
  auto a = Start("a"), b = Start("b");
  EXPECT_EQ(a->rank(), 1);
  EXPECT_EQ(b->rank(), 2);
  EXPECT_EQ(IntOf(Must(b->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
  const std::vector<WorkerInfo> infos = Must(a->Infos());
  ASSERT_EQ(infos.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(infos[rank].rank, rank);
  EXPECT_EQ(infos[0].name, "owner0");
  EXPECT_EQ(infos[1], a->Info());
  EXPECT_EQ(infos[2], b->Info());
  EXPECT_EQ(Must(b->Info("a")), a->Info());
  const absl::Status unknown = a->Info("owner1").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("owner0"));
}

TEST_F(GroupTest, RPC_10_RPC_63_WorkersThatNeverMetCallEachOtherByRankInfoAndName) {
  auto a = StartListening("a"), b = Start("b");
  auto late = Start("late");
  EXPECT_EQ(*Must(late->RpcSync(a->rank(), Named("who"), {}))[0].As<std::string>(), "a");
  EXPECT_EQ(*Must(b->RpcSync(Must(b->Info("a")), Named("who"), {}))[0].As<std::string>(), "a");
  EXPECT_EQ(*Must(b->RpcAsync("a", Named("who"), {}).Wait())[0].As<std::string>(), "a");
  auto by_name = Start("by_name");
  EXPECT_EQ(*Must(by_name->RpcSync("a", Named("who"), {}))[0].As<std::string>(), "a");
  const absl::Status typo = by_name->RpcSync("by_nam", Named("who"), {}).status();
  EXPECT_EQ(typo.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(typo.message()), Not(HasSubstr("'by_name'"))) << "it asks itself";
  EXPECT_THAT(std::string(by_name->RpcSync("owner9", Named("who"), {}).status().message()),
              HasSubstr("did you mean 'owner0'"));
  ASSERT_TRUE(by_name->Shutdown().ok());
  RRef remote = Must(late->Remote(0, Named("who"), {}));
  EXPECT_EQ(Must(late->ToHere({remote})).size(), 1u);
  EXPECT_EQ(a->RpcSync(17, Named("who"), {}).status().code(), absl::StatusCode::kNotFound);
  // b does not listen, and `late` has no connection to it.
  EXPECT_EQ(late->RpcSync(b->rank(), Named("who"), {}).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(a->Shutdown().ok());
  while (Must(b->Infos()).size() > 3) std::this_thread::yield();
  EXPECT_EQ(IntOf(Must(b->RpcSync("owner0", Named("add"), {1, 2}))[0]), 3);
  EXPECT_EQ(Worker::Start(Options("declares", 5)).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "the others declared no group";
}

TEST_F(GroupTest, RPC_63_ValuesOfAnOwnerThatOnlyTheRegistrarKnows) {
  auto a = StartListening("a");
  ASSERT_TRUE(a->GetOrCreate("a", "w", Zeros({2})).ok());
  auto fresh = [&] { return Start(absl::StrCat("fresh", ++started_)); };
  EXPECT_EQ(Must(fresh()->Lookup("a", "w")).owner(), "a");
  EXPECT_EQ(Must(fresh()->List("a")).size(), 1u);
  EXPECT_TRUE(fresh()->GetOrCreate("a", "w", Zeros({2})).ok());
  EXPECT_TRUE(fresh()->Drop("a", "w").ok());
}

TEST_F(GroupTest, RPC_63_AWorkerThatCameBackElsewhereIsFoundAgain) {
  auto moving = StartListening("moving"), caller = Start("caller");
  ASSERT_TRUE(caller->RpcSync("moving", Named("who"), {}).ok());
  ASSERT_TRUE(moving->Shutdown().ok());
  moving = StartListening("moving");
  // Calls fail as long as the caller knows only the former address. Each makes it look up the new
  // one.
  while (!caller->RpcSync("moving", Named("who"), {}).ok()) std::this_thread::yield();
  EXPECT_EQ(Must(caller->Info("moving")), moving->Info());
}

TEST_F(GroupTest, RPC_63_AStrangerThatLeftIsLookedForAgain) {
  auto callee = StartListening("callee"), stranger = StartListening("stranger");
  ASSERT_TRUE(stranger->RpcSync("callee", Named("who"), {}).ok());
  ASSERT_TRUE(callee->RpcSync("stranger", Named("who"), {}).ok()) << "on the stranger's connection";
  ASSERT_TRUE(stranger->Shutdown().ok());
  stranger = StartListening("stranger");
  while (!callee->RpcSync("stranger", Named("who"), {}).ok()) std::this_thread::yield();
}

TEST_F(GroupTest, RREF_11_AReferenceReachesAWorkerThatNeverMetItsOwner) {
  auto a = StartListening("a"), b = Start("b");
  services::CallTarget echo{nullptr, {}, "echo"};
  RRef made = Must(daemon_->runtime().calls().Remote("a", echo, {7}, nullptr, {}));
  Future<Values> call = b->RpcAsync("owner0", Named("park"), {});
  parking_.Take().Set(Values{made});
  RRef passed = RRef::FromValue(Must(call.Wait())[0]);
  EXPECT_EQ(passed.owner(), "a");
  EXPECT_EQ(IntOf(Must(b->ToHere({passed}))[0]), 7) << "b asks the registrar where a is";
}

TEST_F(GroupTest, RPC_53_BarriersOverAnySetAndFromSeveralThreads) {
  auto a = Start("a"), b = Start("b"), c = Start("c");
  EXPECT_TRUE(c->Barrier("alone", {"c"}).ok());
  std::atomic<int> through{0};
  auto meet = [&](Worker& worker, const std::vector<std::string>& members) {
    EXPECT_TRUE(worker.Barrier("x", members).ok());
    ++through;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { meet(*a, {"a", "b"}); });
    threads.emplace_back([&] { meet(*b, {"b", "a"}); });
    threads.emplace_back([&] { meet(*c, {"c"}); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through, 9);
}

TEST_F(GroupTest, RPC_51_AnAllGatherGivesEveryonesValueAsOftenAsItIsRepeated) {
  auto a = Start("a", 2), b = Start("b", 2);
  for (int round = 0; round < 3; ++round) {
    std::map<std::string, Value> seen_by_b;
    std::thread other([&] {
      seen_by_b = Must(b->AllGather("sizes", Value::OfList({round, "b"})));
    });
    auto seen = Must(a->AllGather("sizes", Tensor::Of<float>({1}, {round + 0.5f})));
    other.join();
    ASSERT_EQ(seen.size(), 2u);
    ASSERT_EQ(seen_by_b.size(), 2u);
    EXPECT_EQ(Elements(seen["a"].As<Variable>()->tensor())[0], round + 0.5f);
    EXPECT_EQ(Elements(seen_by_b["a"].As<Variable>()->tensor())[0], round + 0.5f);
    EXPECT_EQ(IntOf(seen["b"].AsList()->at(0)), round);
  }
  EXPECT_EQ(
      a->AllGather("big", Must(Tensor::Full({1 << 20}, DType::kF32, 0)), {"a"}).status().code(),
      absl::StatusCode::kInvalidArgument);
  RRef rref = Must(a->Remote("a", Named("echo"), {1}));
  EXPECT_EQ(a->AllGather("refs", rref, {"a"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GroupTest, RPC_52_RPC_54_WhoIsMissingIsSaidAndNothingIsLeftBehind) {
  auto a = Start("a", 3), b = Start("b", 3);
  const absl::Status gathered =
      a->AllGather("x", 1, {"a", "b", "owner0"}, absl::Milliseconds(20)).status();
  EXPECT_EQ(gathered.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(gathered.message()), HasSubstr("20ms for b, owner0"));
  const absl::Status barrier = a->Barrier("x", {}, absl::Milliseconds(20));
  EXPECT_EQ(barrier.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(barrier.message()), HasSubstr("for b"));
  EXPECT_EQ(a->Barrier("x", {"a", "nobody"}).code(), absl::StatusCode::kNotFound);
  // Exchanges that failed leave nothing behind for the next one of the same name.
  std::thread other([&] { EXPECT_TRUE(b->AllGather("x", 3, {"a", "b"}).ok()); });
  auto values = Must(a->AllGather("x", 2, {"a", "b"}));
  other.join();
  EXPECT_EQ(IntOf(values["a"]), 2);
}

TEST_F(GroupTest, RPC_55_AGroupShutdownWaitsForAllAndForWhatIsUnderWay) {
  auto a = Start("a", 2), b = Start("b", 2);
  ShutdownOptions together;
  together.with_group = true;
  std::atomic<bool> answered{false};
  std::thread leaves([&] {
    EXPECT_TRUE(a->Shutdown(together).ok());
    EXPECT_TRUE(answered) << "b's call was under way";
  });
  Future<Values> call = b->RpcAsync("owner0", Named("park"), {});
  Promise<Values> work = parking_.Take();
  // b can still call while a waits in its group shutdown.
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(IntOf(Must(b->RpcSync("owner0", Named("add"), {i, 1}))[0]), i + 1);
  }
  std::thread follows([&] { EXPECT_TRUE(b->Shutdown(together).ok()); });
  answered = true;
  work.Set(Values{});
  leaves.join();
  follows.join();
  EXPECT_TRUE(call.Wait().ok());
  EXPECT_TRUE(a->Shutdown(together).ok());
}

TEST_F(GroupTest, RPC_56_AFailedGroupPhaseIsAnErrorAndTheWorkerIsShutDownAllTheSame) {
  auto a = Start("a", 2), b = Start("b", 2);
  ShutdownOptions together;
  together.with_group = true;
  together.group_timeout = absl::Milliseconds(-1);
  EXPECT_EQ(a->Shutdown(together).code(), absl::StatusCode::kInvalidArgument);
  together.group_timeout = absl::Milliseconds(20);
  const absl::Status failed = a->Shutdown(together);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("b"));
  EXPECT_EQ(a->NewContext().status().code(), absl::StatusCode::kFailedPrecondition);
  while (Must(b->Infos()).size() > 2) std::this_thread::yield();  // until a has left
  EXPECT_EQ(b->Shutdown(together).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(b->NewContext().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GroupTest, RPC_60_AWorkersStatusShowsThreadsCallsReferencesAndContexts) {
  WorkerOptions options = Options("a");
  options.threads = 3;
  auto a = Must(Worker::Start(std::move(options)));
  Future<Values> parked = a->RpcAsync("owner0", Named("park"), {});
  Promise<Values> work = parking_.Take();
  RRef held = Must(a->Remote("owner0", Named("echo"), {1}));
  ASSERT_TRUE(held.confirmed().Wait().ok());
  Context context = Must(a->NewContext());
  while (RuntimeOf(*a).executor_stats().idle < 6) std::this_thread::yield();  // all have begun
  const v1::WorkerStatus mine = RuntimeOf(*a).status().Collect({});
  EXPECT_EQ(mine.executor().threads(), 6u) << "three for functions and three for steps";
  EXPECT_EQ(mine.executor().idle(), 6u);
  EXPECT_EQ(mine.references().users(), 1u);
  EXPECT_EQ(mine.contexts_held(), 1u);
  ASSERT_EQ(mine.peers_size(), 1);
  EXPECT_GE(mine.peers(0).calls_pending(), 1u);
  const v1::WorkerStatus there = daemon_->runtime().status().Collect({});
  EXPECT_EQ(there.references().owners(), 1u);
  EXPECT_EQ(there.references().forks(), 1u);
  uint64_t serving = 0;
  for (const v1::PeerState& peer : there.peers()) serving += peer.calls_serving();
  EXPECT_GE(serving, 1u);
  work.Set(Values{});
  EXPECT_TRUE(parked.Wait().ok());
}

// ---- whole programs

// Trainers send their gradients to a server. When all have arrived, the model takes one step, and
// every trainer gets the new model.
TEST_F(GroupTest, RPC_67_AServerThatBatchesGradientsIntoOneStep) {
  struct Batcher {
    Mutex mutex;  // leaf
    float model PSD_GUARDED_BY(mutex) = 1;
    float sum PSD_GUARDED_BY(mutex) = 0;
    std::vector<Promise<Values>> waiting PSD_GUARDED_BY(mutex);
  };
  auto batcher = std::make_shared<Batcher>();
  constexpr size_t kTrainers = 3;
  worker::RuntimeOptions options;
  ASSERT_TRUE(options.functions
                  .RegisterAsync("update",
                                 [batcher](const services::FunctionCall&, Values arguments) {
                                   Promise<Values> mine;
                                   std::vector<Promise<Values>> ready;
                                   Tensor model;
                                   {
                                     MutexLock lock(batcher->mutex);
                                     batcher->sum += static_cast<float>(*arguments[0].As<double>());
                                     batcher->waiting.push_back(mine);
                                     if (batcher->waiting.size() == kTrainers) {
                                       batcher->model -= batcher->sum / kTrainers;
                                       batcher->sum = 0;
                                       ready.swap(batcher->waiting);
                                       model = Tensor::Scalar(batcher->model);
                                     }
                                   }
                                   for (const auto& promise : ready) promise.Set(Values{model});
                                   return mine.future();
                                 })
                  .ok());
  TestOwner server("server", std::move(options));
  std::vector<std::unique_ptr<Worker>> trainers;
  for (size_t i = 0; i < kTrainers; ++i) {
    trainers.push_back(StartTrainer(absl::StrCat("t", i), {server.address()}));
  }
  for (int step = 1; step <= 5; ++step) {
    std::vector<Future<Values>> updates;
    for (size_t i = 0; i < kTrainers; ++i) {
      updates.push_back(trainers[i]->RpcAsync("server", Named("update"), {0.1 * (i + 1.0)}));
    }
    for (const auto& update : updates) {
      Values model = Must(update.Wait());
      EXPECT_NEAR(Elements(model[0].As<Variable>()->tensor())[0], 1 - 0.2 * step, 1e-5);
    }
  }
}

// Observers play episodes. They call the agent for each action, and return their reward to it.
TEST_F(GroupTest, RPC_67_AnAgentAndObserversThatCallBack) {
  auto agent_calls = std::make_shared<std::atomic<int>>(0);
  auto functions = [&](bool agent) {
    FunctionRegistry registry;
    auto play = [](const services::FunctionCall& call, Values arguments) -> absl::StatusOr<Values> {
      int64_t reward = 0;
      for (int64_t step = 0; step < IntOf(arguments[0]); ++step) {
        PSD_ASSIGN_OR_RETURN(Values action,
                             call.RpcSync(call.caller().name, Function::Registered("act"), {step}));
        reward += IntOf(action[0]);
      }
      return Values{reward};
    };
    auto act = [agent_calls](const services::FunctionCall&, Values) -> absl::StatusOr<Values> {
      ++*agent_calls;
      return Values{1};
    };
    EXPECT_TRUE((agent ? registry.Register("act", act) : registry.Register("play", play)).ok());
    return registry;
  };
  worker::RuntimeOptions observer;
  observer.functions = functions(false);
  TestOwner o0("o0", observer), o1("o1", observer);
  WorkerOptions options;
  options.name = "agent";
  options.owners = {o0.address(), o1.address()};
  options.functions = functions(true);
  auto agent = Must(Worker::Start(std::move(options)));
  std::vector<Future<Values>> episodes{agent->RpcAsync("o0", Named("play"), {10}),
                                       agent->RpcAsync("o1", Named("play"), {20})};
  EXPECT_EQ(IntOf(Must(episodes[0].Wait())[0]), 10);
  EXPECT_EQ(IntOf(Must(episodes[1].Wait())[0]), 20);
  EXPECT_EQ(*agent_calls, 30);
}

}  // namespace
}  // namespace psd
