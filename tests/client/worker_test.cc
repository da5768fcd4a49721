// The public API against owners in the same process: values, calls, errors.

#include <thread>

#include "client/psd.h"
#include "core/base/memory_budget.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerTest : public ::testing::Test {
 protected:
  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
};

TEST_F(WorkerTest, RPC_02_NamesAreChecked) {
  for (const char* name : {"", "a b", "ä", "a/b"}) {
    WorkerOptions options;
    options.name = name;
    EXPECT_EQ(Worker::Start(options).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  WorkerOptions longest;
  longest.name = std::string(127, 'a');
  EXPECT_TRUE(Worker::Start(longest).ok());
  longest.name += 'a';
  EXPECT_EQ(Worker::Start(longest).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerTest, TheFirstCreatorMakesTheValueAndAllGetTheSame) {
  auto other = StartTrainer("trainer1", {owner0_.address()});
  RRef mine = Must(trainer_->GetOrCreate("owner0", "w", Full({2}, 3)));
  RRef theirs = Must(other->GetOrCreate("owner0", "w", Full({2}, 4)));
  EXPECT_EQ(mine.value_id(), theirs.value_id());
  EXPECT_THAT(Read(*other, theirs), ElementsAre(3, 3));
}

TEST_F(WorkerTest, AnotherShapeUnderAKnownNameIsRefused) {
  Must(trainer_->GetOrCreate("owner0", "w", Zeros({2})));
  absl::Status refused = trainer_->GetOrCreate("owner0", "w", Zeros({3})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'w' exists as"));
  CreateOptions with_grad;
  with_grad.requires_grad = true;
  EXPECT_EQ(trainer_->GetOrCreate("owner0", "w", Zeros({2}), with_grad).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(WorkerTest, AssignPublishesANewVersion) {
  RRef w = Must(trainer_->GetOrCreate("owner0", "w", Zeros({2})));
  EXPECT_EQ(Must(trainer_->Assign(w, Tensor::Of<float>({2}, {1, 2}))), 2u);
  EXPECT_THAT(Read(*trainer_, w), ElementsAre(1, 2));
  EXPECT_EQ(trainer_->Assign(w, Tensor::Of<float>({3}, {1, 2, 3})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Read(*trainer_, w), ElementsAre(1, 2));
}

TEST_F(WorkerTest, ListsLooksUpAndDrops) {
  Must(trainer_->GetOrCreate("owner0", "a/1", Zeros({4})));
  Must(trainer_->GetOrCreate("owner0", "a/2", Zeros({4})));
  RRef kept = Must(trainer_->GetOrCreate("owner0", "b", Full({1}, 7)));
  auto listed = Must(trainer_->List("owner0", "a/"));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name, "a/1");
  EXPECT_THAT(listed[0].kind, HasSubstr("f32[4]"));
  EXPECT_TRUE(trainer_->Lookup("owner0", "b").ok());
  EXPECT_TRUE(trainer_->Drop("owner0", "b").ok());
  absl::Status gone = trainer_->Lookup("owner0", "b").status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  // A reference keeps the value alive.
  EXPECT_THAT(Read(*trainer_, kept), ElementsAre(7));
}

TEST_F(WorkerTest, RPC_11_ProgramsRunOnTheOwner) {
  Values sum =
      Must(trainer_->RpcSync("owner0", Function::Operator("add", 2),
                             {Tensor::Of<float>({2}, {1, 2}), Tensor::Of<float>({2}, {3, 4})}));
  EXPECT_THAT(Elements(sum[0].As<Variable>()->tensor()), ElementsAre(4, 6));
}

TEST_F(WorkerTest, RPC_13_AWorkerCallsItself) {
  Values sum = Must(trainer_->RpcSync("trainer0", Function::Operator("neg", 1),
                                      {Tensor::Of<float>({2}, {1, 2})}));
  EXPECT_THAT(Elements(sum[0].As<Variable>()->tensor()), ElementsAre(-1, -2));
}

TEST_F(WorkerTest, RPC_12_EveryFutureGetsItsOwnResult) {
  std::vector<Future<Values>> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(trainer_->RpcAsync(i % 2 ? "owner0" : "owner1", Function::Operator("neg", 1),
                                       {Must(Tensor::Full({i}, DType::kF32, i))}));
  }
  for (int i = 0; i < 100; ++i) {
    Values values = Must(calls[i].Wait());
    EXPECT_EQ(Elements(values[0].As<Variable>()->tensor()), std::vector<float>(i, -i));
  }
}

TEST_F(WorkerTest, RPC_10_AnUnknownWorkerIsNamed) {
  absl::Status status = trainer_->RpcSync("owner9", Function::Operator("neg", 1), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner9"));
}

TEST_F(WorkerTest, RPC_10_AWorkerIsNeverProposedToItself) {
  const absl::Status status =
      trainer_->RpcSync("trainer9", Function::Operator("neg", 1), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("did you mean")));
}

TEST_F(WorkerTest, AnUnknownNameIsToldWithItsOwnerAndTheNearest) {
  ASSERT_TRUE(trainer_->GetOrCreate("owner0", "layer1/weight", Zeros({1})).ok());
  for (const absl::Status& status : {trainer_->Lookup("owner0", "layer1/wieght").status(),
                                     trainer_->Drop("owner0", "layer1/wieght")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("owner0: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean 'layer1/weight'"));
    ASSERT_TRUE(GetDetail(status).has_value());
    EXPECT_EQ(GetDetail(status)->worker, "owner0");
    EXPECT_EQ(GetDetail(status)->object, "layer1/wieght");
  }
}

TEST_F(WorkerTest, RPC_18_AnUnknownFunctionOrOperatorIsAnErrorAndTheOwnerServesOn) {
  absl::Status function = trainer_->RpcSync("owner0", Function::Registered("nothing"), {}).status();
  EXPECT_EQ(function.code(), absl::StatusCode::kNotFound);
  absl::Status op = trainer_->RpcSync("owner0", Function::Operator("adda", 2), {}).status();
  EXPECT_EQ(op.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(op.message()), HasSubstr("add"));
  EXPECT_TRUE(trainer_->GetOrCreate("owner0", "w", Zeros({1})).ok());
}

TEST_F(WorkerTest, RPC_16_WrongArgumentsAreAnErrorOfTheCall) {
  EXPECT_EQ(trainer_->RpcSync("owner0", Function::Operator("add", 2), {Tensor::Scalar(1.0f)})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(trainer_
                ->RpcSync("owner0", Function::Operator("matmul", 2),
                          {Tensor::Of<float>({2}, {1, 2}), Tensor::Of<float>({2}, {1, 2})})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerTest, AProgramThatItsOwnerForgotIsSentAgain) {
  worker::RuntimeOptions one_program;
  one_program.program_cache_entries = 1;
  TestOwner forgetful("forgetful", std::move(one_program));
  auto trainer = StartTrainer("trainer1", {forgetful.address()});
  for (int i = 0; i < 3; ++i) {
    for (const char* op : {"neg", "exp"}) {
      EXPECT_TRUE(
          trainer->RpcSync("forgetful", Function::Operator(op, 1), {Tensor::Scalar(1.0f)}).ok());
    }
    for (const char* op : {"neg", "exp"}) {
      RRef made =
          Must(trainer->Remote("forgetful", Function::Operator(op, 1), {Tensor::Scalar(1.0f)}));
      EXPECT_TRUE(trainer->ToHere({made}).ok());
    }
  }
}

TEST_F(WorkerTest, RREF_02_RemoteLeavesTheResultOnTheOwner) {
  RRef result = Must(
      trainer_->Remote("owner0", Function::Operator("neg", 1), {Tensor::Of<float>({2}, {1, 2})}));
  EXPECT_EQ(result.owner(), "owner0");
  EXPECT_THAT(Read(*trainer_, result), ElementsAre(-1, -2));
  // As an argument of a program on its owner, an RRef stands for its value.
  Values again =
      Must(trainer_->RpcSync("owner0", Function::Operator("neg", 1),
                             {std::shared_ptr<const store::RemoteReference>(result.body())}));
  EXPECT_THAT(Elements(again[0].As<Variable>()->tensor()), ElementsAre(1, 2));
}

TEST_F(WorkerTest, RREF_24_AnErrorOfTheCreationIsToldAtTheFetch) {
  RRef broken =
      Must(trainer_->Remote("owner0", Function::Operator("add", 2),
                            {Tensor::Of<float>({2}, {1, 2}), Tensor::Of<float>({3}, {1, 2, 3})}));
  EXPECT_EQ(trainer_->ToHere({broken}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerTest, RegisteredFunctionsTakeAndReturnValues) {
  FunctionRegistry functions;
  ASSERT_TRUE(functions
                  .Register("swap",
                            [](const services::FunctionCall& call,
                               Values arguments) -> absl::StatusOr<Values> {
                              if (arguments.size() != 2) {
                                return absl::InvalidArgumentError("swap takes two values");
                              }
                              return Values{arguments[1], arguments[0], call.caller().name};
                            })
                  .ok());
  worker::RuntimeOptions options;
  options.functions = std::move(functions);
  TestOwner custom("custom", std::move(options));
  auto trainer = StartTrainer("trainer1", {custom.address()});
  Values swapped = Must(trainer->RpcSync("custom", Function::Registered("swap"), {1, "two"}));
  ASSERT_EQ(swapped.size(), 3u);
  EXPECT_EQ(*swapped[0].As<std::string>(), "two");
  EXPECT_EQ(*swapped[1].As<int64_t>(), 1);
  EXPECT_EQ(*swapped[2].As<std::string>(), "trainer1");
}

TEST_F(WorkerTest, RPC_36_AnOwnerCallsBackATrainerThatDoesNotListen) {
  FunctionRegistry on_owner;
  ASSERT_TRUE(
      on_owner
          .Register("ask_back",
                    [](const services::FunctionCall& call, Values) -> absl::StatusOr<Values> {
                      return call.RpcSync(call.caller().name, Function::Registered("name"), {});
                    })
          .ok());
  worker::RuntimeOptions options;
  options.functions = std::move(on_owner);
  TestOwner custom("custom", std::move(options));
  WorkerOptions own;
  own.name = "trainer1";
  own.owners = {custom.address()};
  ASSERT_TRUE(own.functions
                  .Register("name",
                            [](const services::FunctionCall& call, const Values&) {
                              return absl::StatusOr<Values>(Values{call.self().name});
                            })
                  .ok());
  auto trainer = Must(Worker::Start(std::move(own)));
  EXPECT_EQ(trainer->address(), "");
  Values answer = Must(trainer->RpcSync("custom", Function::Registered("ask_back"), {}));
  EXPECT_EQ(*answer[0].As<std::string>(), "trainer1");
}

TEST_F(WorkerTest, RREF_39_ForksGoWithTheirHandlesAndWithTheSession) {
  {
    RRef w = Must(trainer_->Remote("owner0", Function::Operator("neg", 1), {Tensor::Scalar(1.0f)}));
    Read(*trainer_, w);
    EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 1u);
    EXPECT_EQ(owner0_.runtime().store().stats().anonymous, 1u);
  }
  while (owner0_.runtime().store().stats().anonymous > 0) std::this_thread::yield();
  RRef kept =
      Must(trainer_->Remote("owner0", Function::Operator("neg", 1), {Tensor::Scalar(1.0f)}));
  Read(*trainer_, kept);
  ASSERT_TRUE(trainer_->Shutdown().ok());
  while (owner0_.runtime().store().stats().anonymous > 0) std::this_thread::yield();
  EXPECT_EQ(owner0_.runtime().rrefs().stats().forks, 0u);
}

TEST_F(WorkerTest, AMemoryBudgetRefusesByNumbersAndServesOn) {
  worker::RuntimeOptions budget;
  budget.memory = MemoryBudget::Create(1 << 20);
  TestOwner small("small", std::move(budget));
  auto trainer = StartTrainer("trainer1", {small.address()});
  absl::Status refused = trainer->GetOrCreate("small", "big", Zeros({1 << 20})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1048576"));
  EXPECT_TRUE(trainer->GetOrCreate("small", "little", Zeros({16})).ok());
}

TEST_F(WorkerTest, AMessageThatFindsNoRoomIsRefusedAndChangesNothing) {
  worker::RuntimeOptions options;
  options.memory = MemoryBudget::Create(32 << 20);
  carrier::GrpcCarrierOptions network;
  network.memory = options.memory;
  network.room_patience = absl::Milliseconds(20);
  options.carrier = *carrier::NewGrpcCarrier(network);
  MemoryAccount& transit = *options.memory->transit();
  TestOwner full("full", std::move(options));
  auto trainer = StartTrainer("trainer1", {full.address()});
  const RRef w = *trainer->GetOrCreate("full", "w", Zeros({1 << 20}));
  const Tensor ones = *Tensor::Full({1 << 20}, DType::kF32, 1);
  MemoryCharge held = *transit.Charge(20 << 20);
  const absl::Status refused = trainer->Assign(w, ones).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"full", "4194304", "33554432", "and 21"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part)) << "owner, need, budget and use";
  }
  EXPECT_EQ(Read(*trainer, w).at(0), 0) << "reading goes on, and nothing has changed";
  held.reset();
  EXPECT_TRUE(trainer->Assign(w, ones).ok());
  EXPECT_EQ(Read(*trainer, w).at(0), 1);
}

TEST_F(WorkerTest, WhatIsCreatedIsBoundedByTheBudgetNotByWhatAResultMayBe) {
  worker::RuntimeOptions limits;
  limits.memory = MemoryBudget::Create(1 << 20);
  limits.program_limits.max_result_bytes = 1024;
  TestOwner small("small", std::move(limits));
  auto trainer = StartTrainer("trainer1", {small.address()});
  EXPECT_TRUE(trainer->GetOrCreate("small", "fits", Zeros({100'000})).ok());
  CreateOptions table;
  table.rows = true;
  EXPECT_TRUE(trainer->GetOrCreate("small", "rows", Zeros({1000, 25}), table).ok());
  const absl::Status refused = trainer->GetOrCreate("small", "big", Zeros({200'000})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"800000", "1048576", "values, of which 50", "raise the budget"})
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
}

TEST_F(WorkerTest, RPC_06_AfterShutdownEveryCallSaysSo) {
  ASSERT_TRUE(trainer_->Shutdown().ok());
  EXPECT_TRUE(trainer_->Shutdown().ok());
  EXPECT_EQ(trainer_->Lookup("owner0", "w").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(trainer_->NewContext().status().code(), absl::StatusCode::kFailedPrecondition);
  const Function neg = Function::Operator("neg", 1);
  const Values one{Tensor::Scalar(1.0f)};
  for (const char* callee : {"owner0", "trainer0"}) {
    for (const absl::Status& refused : {trainer_->RpcSync(callee, neg, one).status(),
                                        trainer_->RpcAsync(callee, neg, one).Wait().status(),
                                        trainer_->Remote(callee, neg, one).status()}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(refused.message()), HasSubstr("trainer0"));
    }
  }
}

}  // namespace
}  // namespace psd
