// A daemon asks its policy about every method, and changes nothing where the policy denies.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/rpc/access.h"
#include "core/rpc/message_io.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/checkpoint.pb.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "proto/psd/v1/status.pb.h"
#include "proto/psd/v1/worker.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd::server {
namespace {

using rpc::AccessQuestion;
using ::testing::HasSubstr;
using ::testing::Not;

const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

// The methods that ask nothing, with the reason for each.
const std::map<std::string, std::string>& Unasked() {
  static const auto* const reasons = new std::map<std::string, std::string>{
      {"rref.release", "gives back references that the caller holds"},
      {"rref.fork", "counts a reference that the caller got from its holder"},
      {"rref.counted", "tells the holder that a reference is counted"},
      {"rref.begun", "asks about a value whose creation the caller has started"},
      {"rref.made", "asks about a value to which the caller holds a reference"},
      {"autograd.gradient", "goes back over a call that was asked for when it was made"},
      {"autograd.mark", "goes back over a call that was asked for when it was made"},
      {"autograd.abort", "ends a pass that has reached this worker by such calls"},
      {"autograd.release", "releases a context that has reached this worker by such calls"},
      {"worker.info", "tells a newcomer the names that it needs to join"},
      {"collective.enter", "is served to the members of a group, which met in a barrier"},
      {"collective.piece", "is served to the members of a group, which met in a barrier"},
      {"collective.take", "is served to the members of a group, which met in a barrier"},
      {"collective.watch", "is served to the members of a group, which met in a barrier"},
      {"checkpoint.fetch", "reads copies that the same session was given by checkpoint.export"},
      {"checkpoint.fill", "writes into room that the same session was given"},
      {"checkpoint.release", "frees copies or room of the same session"},
      {"save.write", "asks for its items as checkpoint.export does; needs a save of its session"},
      {"save.finish", "ends a save that the same session has opened"},
      {"save.close", "gives up a save that the same session has opened"},
      {"value.piece",
       "reads what the same session was given by value.fetch, or the worker by a message"},
      {"value.end_pull", "gives back what the same session holds"},
      {"device.return_loans", "gives back what the process that has the key holds"},
      {"optimizer.end_turn", "gives back what the same session holds"},
      {"optimizer.leave", "gives back what the same session holds"},
  };
  return *reasons;
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    DaemonConfig config;
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    ServerExtensions extensions;
    EXPECT_TRUE(extensions.functions
                    .Register("count",
                              [this](const FunctionCall&, const Values&) {
                                ++functions_run_;
                                return absl::StatusOr<Values>(Values{});
                              })
                    .ok());
    server_ = Must(Server::Create(config, std::move(extensions), NewNullLogger()));
    address_ = Must(server_->Start());
    trainer_ = StartTrainer("trainer0", {{"owner0", address_}});
    w_ = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {10}));
    CreateOptions rows;
    rows.rows = true;
    table_ = Must(trainer_->GetOrCreate("owner0", "table", Zeros({4, 2}), rows));
    optimizer_ =
        Must(DistributedOptimizer::Create(*trainer_, "main", kSgd1, std::vector<RRef>{w_}));
    main_ = Must(trainer_->Lookup("owner0", "main"));
  }

  rpc::Access& access() { return server_->runtime().agent().access(); }
  void DenyAll() {
    access().SetPolicy([](const AccessQuestion&) -> std::optional<size_t> { return 0; });
  }

  // Denies `right` on `object`, and nothing else.
  void Deny(rpc::Right right, const std::string& object) {
    access().SetPolicy([right, object](const AccessQuestion& question) -> std::optional<size_t> {
      if (question.right != right) return std::nullopt;
      for (size_t i = 0; i < question.objects.size(); ++i)
        if (question.objects[i] == object) return i;
      return std::nullopt;
    });
  }

  // Calls a method with `message` as its header.
  template <typename Message>
  absl::Status Call(const std::string& method, const Message& message) {
    return RuntimeOf(*trainer_)
        .agent()
        .StartCall("owner0", rpc::PlainRequest(method, message), {})
        .reply()
        .Wait()
        .status();
  }
  template <typename Message>
  Message OfMain() const {
    Message message;
    message.set_optimizer_incarnation(main_.value_id().incarnation);
    message.set_optimizer_counter(main_.value_id().counter);
    return message;
  }
  absl::Status OpenSave() {
    rpc::Request request;
    request.method = "save.open";
    request.payload.buffers.push_back(
        Buffer::FromString(v1::OpenSaveRequest().SerializeAsString()));
    return RuntimeOf(*trainer_)
        .agent()
        .StartCall("owner0", std::move(request), {})
        .reply()
        .Wait()
        .status();
  }

  struct Denied {
    std::string method;
    std::string right;   // as in the error
    std::string object;  // as in the error
    std::function<absl::Status()> call;
  };
  std::vector<Denied> AllDenied();

  std::atomic<int> functions_run_{0};
  std::unique_ptr<Server> server_;
  std::string address_;
  std::unique_ptr<Worker> trainer_;
  RRef w_, table_, main_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

std::vector<AccessTest::Denied> AccessTest::AllDenied() {
  services::CheckpointService& checkpoints = RuntimeOf(*trainer_).checkpoints();
  auto context = std::make_shared<Context>(Must(trainer_->NewContext()));
  const std::vector<Variable> here = Must(trainer_->ToHere({w_}, *context));
  EXPECT_TRUE(context->Backward({Sum(here[0])}).ok());
  const Tensor one = Tensor::Of<float>({1}, {1});
  const Function count = Function::Registered("count"), neg = Function::Operator("neg", 1);
  return {
      {"value.get_or_create", "create", "new",
       [this] { return trainer_->GetOrCreate("owner0", "new", Zeros({1})).status(); }},
      {"value.lookup", "read", "w", [this] { return trainer_->Lookup("owner0", "w").status(); }},
      {"value.drop", "drop", "w", [this] { return trainer_->Drop("owner0", "w"); }},
      {"value.fetch", "read", "w", [this] { return trainer_->ToHere({w_}).status(); }},
      {"value.assign", "write", "w", [this, one] { return trainer_->Assign(w_, one).status(); }},
      {"value.list", "list names under", "t",
       [this] { return trainer_->List("owner0", "t").status(); }},
      {"rows.lookup", "read", "table",
       [this] {
         return trainer_->LookUpRows({{table_, Tensor::Of<int64_t>({1}, {0})}}).status();
       }},
      {"call.program", "call", "programs",
       [=] { return trainer_->RpcSync("owner0", neg, {one}).status(); }},
      {"call.run", "call", "count",
       [=] { return trainer_->RpcSync("owner0", count, {}).status(); }},
      {"call.remote", "call", "count",
       [=] { return Must(trainer_->Remote("owner0", count, {})).confirmed().Wait().status(); }},
      {"gradient.push", "write", "w", [=] { return context->PushGradient(w_, one, 0); }},
      {"gradient.fetch", "read", "w", [=] { return context->Gradient(w_).status(); }},
      {"optimizer.create", "create", "second",
       [this] {
         return RuntimeOf(*trainer_)
             .optimizer_service()
             .Create("owner0", "second", {{{"sgd", {{"lr", 1}}}, {w_}}}, {}, {})
             .Wait()
             .status();
       }},
      {"optimizer.part", "read", "main",
       [this] {
         v1::PartRequest request;
         request.set_name("main");
         return Call("optimizer.part", request);
       }},
      {"optimizer.prepare", "step", "main",
       [this] { return Call("optimizer.prepare", OfMain<v1::PrepareRequest>()); }},
      {"optimizer.step", "step", "main", [=] { return optimizer_->Step(*context); }},
      {"optimizer.take_turn", "step", "main",
       [this] { return Call("optimizer.take_turn", OfMain<v1::TurnRequest>()); }},
      {"optimizer.options", "read", "main", [this] { return optimizer_->Options().status(); }},
      {"optimizer.set_options", "write", "main",
       [this] { return Call("optimizer.set_options", OfMain<v1::SetOptionsRequest>()); }},
      {"checkpoint.describe", "inspect", "owner0",
       [&checkpoints] { return checkpoints.Describe("owner0", {}).Wait().status(); }},
      {"checkpoint.check", "load", "owner0",
       [&checkpoints] { return checkpoints.Check("owner0", {}, {}).Wait().status(); }},
      {"checkpoint.export", "save", "w",
       [this, &checkpoints] {
         services::ExportItem item;
         item.value = w_.value_id();
         return checkpoints.Export("owner0", {item}, {}).Wait().status();
       }},
      {"checkpoint.import", "load", "w",
       [&checkpoints, one] {
         services::ImportItem item;
         item.name = "w";
         item.elements = one;
         return checkpoints.Import("owner0", {item}, {}, {}).Wait().status();
       }},
      {"checkpoint.make_room", "load", "owner0",
       [&checkpoints] {
         return checkpoints.MakeRoom("owner0", {1, 1}, {}, {}).Wait().status();
       }},
      {"save.open", "save", "owner0", [this] { return OpenSave(); }},
      {"worker.status", "inspect", "owner0",
       [this] { return Call("worker.status", v1::StatusRequest()); }},
      {"registrar.join", "join", "the job",
       [this] {
         WorkerOptions options;
         options.name = "trainer1";
         options.owners = {{"owner0", address_}};
         return Worker::Start(std::move(options)).status();
       }},
      {"registrar.world", "inspect", "the job", [this] { return trainer_->Infos().status(); }},
      {"registrar.barrier", "join", "start",
       [this] { return trainer_->Barrier("start", {"trainer0"}); }},
  };
}

TEST_F(AccessTest, EveryMethodAsksOrHasAReasonNotTo) {
  std::vector<std::string> listed;
  for (const Denied& each : AllDenied()) listed.push_back(each.method);
  for (const auto& [method, reason] : Unasked()) {
    EXPECT_FALSE(reason.empty()) << method;
    listed.push_back(method);
  }
  EXPECT_THAT(server_->runtime().agent().Methods(), ::testing::UnorderedElementsAreArray(listed));
}

TEST_F(AccessTest, WhatIsDeniedNamesWhoWhatAndOnWhatAndChangesNothing) {
  const std::vector<Denied> all = AllDenied();
  const std::vector<ValueInfo> values = Must(trainer_->List("owner0"));
  const size_t members = Must(trainer_->Infos()).size();
  const size_t anonymous = server_->runtime().store().stats().anonymous;
  DenyAll();
  for (const Denied& each : all) {
    const absl::Status denied = each.call();
    EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied) << each.method << ": " << denied;
    EXPECT_THAT(denied.message(),
                HasSubstr(absl::StrCat("anonymous (called \"trainer",
                                       each.method == "registrar.join" ? 1 : 0, "\") may not ",
                                       each.right, " '", each.object, "' on owner0")))
        << each.method;
  }
  access().SetPolicy(nullptr);
  EXPECT_EQ(functions_run_, 0);
  EXPECT_EQ(Must(trainer_->Infos()).size(), members);
  EXPECT_EQ(server_->runtime().store().stats().anonymous, anonymous);
  EXPECT_EQ(Must(optimizer_->Options()).options.at("lr"), 1);
  EXPECT_EQ(Read(*trainer_, w_)[0], 10);
  const std::vector<ValueInfo> after = Must(trainer_->List("owner0"));
  ASSERT_EQ(after.size(), values.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].name, values[i].name);
    EXPECT_EQ(after[i].version, values[i].version) << after[i].name;
  }
}

void ExpectDenied(const absl::Status& denied, const std::string& what) {
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied) << denied;
  EXPECT_THAT(denied.message(), HasSubstr(absl::StrCat("may not ", what, " on owner0")));
}

TEST_F(AccessTest, WhatASessionHoldsIsGivenBackWithoutAQuestion) {
  DenyAll();
  v1::TurnRequest turn = OfMain<v1::TurnRequest>();
  turn.set_turn_incarnation(RuntimeOf(*trainer_).agent().self().incarnation);
  turn.set_turn_counter(1);
  EXPECT_EQ(Call("optimizer.end_turn", turn), absl::OkStatus());
  EXPECT_EQ(Call("optimizer.leave", OfMain<v1::LeaveOptimizerRequest>()), absl::OkStatus());
}

TEST_F(AccessTest, ACreationThatDropsAPartOrBeginsALoadAsksForThatToo) {
  v1::CreateOptimizerRequest create;
  create.set_name("main");
  create.set_type("sgd");
  v1::OptimizerGroup& group = *create.add_groups();
  group.add_parameter_incarnations(w_.value_id().incarnation);
  group.add_parameter_counters(w_.value_id().counter);
  v1::CreateOptimizerRequest replaces = create, loads = create;
  replaces.set_replaced_incarnation(main_.value_id().incarnation);
  replaces.set_replaced_counter(main_.value_id().counter);
  loads.set_unfinished(true);
  Deny(rpc::Right::kDrop, "main");
  ExpectDenied(Call("optimizer.create", replaces), "drop 'main'");
  Deny(rpc::Right::kLoad, "main");
  ExpectDenied(Call("optimizer.create", loads), "load 'main'");
  access().SetPolicy(nullptr);
  EXPECT_EQ(optimizer_->Options().status(), absl::OkStatus()) << "neither has changed the part";
}

TEST_F(AccessTest, AnExportAsksForTheOptimizersWhoseStateItCopies) {
  services::ExportItem item;
  item.value = w_.value_id();
  item.optimizers = {main_.value_id()};
  services::CheckpointService& checkpoints = RuntimeOf(*trainer_).checkpoints();
  EXPECT_EQ(checkpoints.Export("owner0", {item}, {}).Wait().status(), absl::OkStatus());
  Deny(rpc::Right::kSave, "main");
  ExpectDenied(checkpoints.Export("owner0", {item}, {}).Wait().status(), "save 'main'");
}

TEST_F(AccessTest, TheAnswerAboutAnAbsentNameTellsNothingThatTheAskerMayNotKnow) {
  DenyAll();
  ExpectDenied(trainer_->Lookup("owner0", "tabel").status(), "read 'tabel'");
  ExpectDenied(trainer_->Drop("owner0", "tabel"), "drop 'tabel'");
  Deny(rpc::Right::kList, "");
  for (const absl::Status& absent :
       {trainer_->Lookup("owner0", "tabel").status(), trainer_->Drop("owner0", "tabel")}) {
    EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound) << absent;
    EXPECT_THAT(absent.message(), Not(HasSubstr("did you mean")));
  }
  Deny(rpc::Right::kList, "another prefix");
  for (const absl::Status& absent :
       {trainer_->Lookup("owner0", "tabel").status(), trainer_->Drop("owner0", "tabel")})
    EXPECT_THAT(absent.message(), HasSubstr("did you mean 'table'?"));
}

TEST_F(AccessTest, AStepOverAThousandParametersAsksOncePerRequest) {
  std::vector<RRef> parameters;
  CreateOptions grad;
  grad.requires_grad = true;
  for (int i = 0; i < 1000; ++i) {
    parameters.push_back(
        Must(trainer_->GetOrCreate("owner0", absl::StrCat("p", i), Zeros({1}), grad)));
  }
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "many", kSgd1, parameters));
  std::atomic<int> questions{0};
  std::atomic<size_t> objects{0};
  access().SetPolicy([&](const AccessQuestion& question) -> std::optional<size_t> {
    ++questions;
    objects += question.objects.size();
    return std::nullopt;
  });
  const auto step = [&] {
    Context context = Must(trainer_->NewContext());
    const std::vector<Variable> here = Must(trainer_->ToHere(parameters, context));
    Variable sum = Sum(here[0]);
    for (size_t i = 1; i < here.size(); ++i) sum = sum + Sum(here[i]);
    ASSERT_TRUE(context.Backward({sum}).ok());
    ASSERT_TRUE(optimizer->Step(context).ok());
  };
  step();
  EXPECT_EQ(questions, 2) << "one for the fetch, one for the step";
  EXPECT_EQ(objects, 1001u);
  step();
  EXPECT_EQ(questions, 2) << "the answers are remembered";
  ASSERT_TRUE(trainer_->Drop("owner0", "table").ok());
  EXPECT_EQ(questions, 3);
  step();
  EXPECT_EQ(questions, 5) << "a name was dropped, so both are asked again";
}

// For clients of the unary service, the policy is asked by the same names.
TEST_F(AccessTest, TheGatewayAsksForItsClients) {
  const auto stub = v1::ParameterService::NewStub(
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  v1::OpenSessionRequest open;
  open.set_client("client0");
  v1::OpenSessionReply opened;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub->OpenSession(&context, open, &opened).ok());
  }
  uint64_t sequence = 0;
  const auto call = [&](auto method, auto request, auto reply) {
    grpc::ClientContext context;
    return (stub.get()->*method)(&context, request, &reply);
  };
  const auto mutate = [&](auto method, auto request, auto* reply) {
    request.mutable_header()->set_session(opened.session());
    request.mutable_header()->set_sequence(++sequence);
    grpc::ClientContext context;
    return (stub.get()->*method)(&context, request, reply);
  };
  using Stub = v1::ParameterService::Stub;
  v1::NewContextReply made;
  ASSERT_TRUE(mutate(&Stub::NewContext, v1::NewContextRequest(), &made).ok());
  DenyAll();
  const auto expect = [](const grpc::Status& status, const std::string& who,
                         const std::string& what) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(who, " may not ", what)));
  };
  v1::PullRequest pull;
  pull.add_names("w");
  expect(call(&Stub::Pull, pull, v1::PullReply()), "anonymous", "read 'w' on owner0");
  pull.set_names(0, "absent");
  expect(call(&Stub::Pull, pull, v1::PullReply()), "anonymous", "read 'absent' on owner0");
  v1::ListValuesRequest list;
  list.set_prefix("x");
  expect(call(&Stub::List, list, v1::ListValuesReply()), "anonymous", "list names under 'x'");
  expect(call(&Stub::Status, v1::StatusRequest(), v1::WorkerStatus()), "anonymous",
         "inspect 'owner0'");
  const std::string client = "anonymous (called \"client0\")";
  v1::GetOrCreateParameterRequest create;
  create.set_name("new");
  create.add_shape(1);
  create.set_dtype(v1::DATA_TYPE_F32);
  create.set_initializer(v1::INITIALIZER_ZEROS);
  v1::GetOrCreateParameterReply created;
  expect(mutate(&Stub::GetOrCreateParameter, create, &created), client, "create 'new'");
  v1::GetOrCreateOptimizerRequest optimizer;
  optimizer.set_name("second");
  optimizer.set_type("sgd");
  optimizer.add_parameters("w");
  v1::GetOrCreateOptimizerReply second;
  expect(mutate(&Stub::GetOrCreateOptimizer, optimizer, &second), client, "create 'second'");
  v1::DropRequest drop;
  drop.set_name("w");
  v1::DropReply dropped;
  expect(mutate(&Stub::Drop, drop, &dropped), client, "drop 'w'");
  v1::PushGradientRequest push;
  push.set_context(made.context());
  push.set_parameter("w");
  push.mutable_gradient()->set_dtype(v1::DATA_TYPE_F32);
  push.mutable_gradient()->add_shape(1);
  push.mutable_gradient()->set_elements(std::string(4, '\0'));
  v1::PushGradientReply pushed;
  expect(mutate(&Stub::PushGradient, push, &pushed), client, "write 'w'");
  push.set_parameter("absent");
  expect(mutate(&Stub::PushGradient, push, &pushed), client, "write 'absent'");
  v1::StepOptimizerRequest step;
  step.set_context(made.context());
  step.set_optimizer("main");
  v1::StepOptimizerReply stepped;
  expect(mutate(&Stub::Step, step, &stepped), client, "step 'main'");
  step.set_optimizer("absent");
  expect(mutate(&Stub::Step, step, &stepped), client, "step 'absent'");
  access().SetPolicy([](const AccessQuestion& question) -> std::optional<size_t> {
    if (question.right == rpc::Right::kStep) return 0;
    return std::nullopt;
  });
  expect(mutate(&Stub::GetOrCreateOptimizer, optimizer, &second), client, "step 'w'");
  access().SetPolicy(nullptr);
  EXPECT_EQ(Must(trainer_->List("owner0")).size(), 3u);
  EXPECT_EQ(Read(*trainer_, w_)[0], 10);
}

}  // namespace
}  // namespace psd::server
