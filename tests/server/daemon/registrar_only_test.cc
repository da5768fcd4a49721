// A registrar without values: trainers meet there, and nothing can be left on it.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;

class RegistrarOnlyTest : public ::testing::Test {
 protected:
  RegistrarOnlyTest() {
    DaemonConfig config;
    config.name = "registrar";
    config.listen = "127.0.0.1:0";
    config.registrar_only = true;
    ServerExtensions extensions;
    const auto nothing = [](const FunctionCall&, const Values&) {
      return absl::StatusOr<Values>(Values{});
    };
    EXPECT_TRUE(extensions.functions.Register("nothing", nothing).ok());
    server_ = Must(Server::Create(config, std::move(extensions), NewNullLogger()));
    address_ = Must(server_->Start());
  }

  std::unique_ptr<Worker> StartRank(uint32_t rank, uint32_t group_size) {
    WorkerOptions options;
    options.name = absl::StrCat("rank", rank);
    options.owners = {{"registrar", address_}};
    options.group_size = group_size;
    options.group_rank = rank;
    return Must(Worker::Start(std::move(options)));
  }

  std::unique_ptr<Server> server_;
  std::string address_;
};

void ExpectRefused(const absl::Status& status, const std::string& object) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("registrar is a registrar that hosts no values"));
  ASSERT_TRUE(GetDetail(status).has_value()) << status;
  EXPECT_EQ(GetDetail(status)->worker, "registrar");
  EXPECT_EQ(GetDetail(status)->object, object);
  EXPECT_FALSE(GetDetail(status)->remedy.empty());
}

TEST_F(RegistrarOnlyTest, RanksAreThoseThatTheTrainersAskFor) {
  auto last = StartRank(2, 3), first = StartRank(0, 3), middle = StartRank(1, 3);
  EXPECT_EQ(first->rank(), 0);
  EXPECT_EQ(middle->rank(), 1);
  EXPECT_EQ(last->rank(), 2);
  const std::vector<WorkerInfo> infos = Must(first->Infos());
  ASSERT_EQ(infos.size(), 3u) << "the registrar is no member of the job";
  EXPECT_EQ(infos[2].name, "rank2");
  EXPECT_TRUE(Must(first->JobOwners()).empty());
}

TEST_F(RegistrarOnlyTest, TheGroupMeetsThere) {
  auto first = StartRank(0, 2), second = StartRank(1, 2);
  std::thread other([&] { EXPECT_TRUE(second->Barrier("start").ok()); });
  EXPECT_TRUE(first->Barrier("start").ok());
  other.join();
}

TEST_F(RegistrarOnlyTest, NothingCanBeLeftThere) {
  auto trainer = StartRank(0, 1);
  CreateOptions parameter;
  parameter.requires_grad = true;
  ExpectRefused(trainer->GetOrCreate("registrar", "w", Zeros({2}), parameter).status(), "w");
  CreateOptions rows;
  rows.rows = true;
  ExpectRefused(trainer->GetOrCreate("registrar", "table", Zeros({2, 2}), rows).status(), "table");
  ExpectRefused(trainer->RpcSync("registrar", Function::Registered("nothing"), {}).status(),
                "nothing");
  ExpectRefused(trainer->RpcSync("registrar", Zeros({2}), {}).status(), "programs");
  const RRef left = Must(trainer->Remote("registrar", Zeros({2}), {}));
  ExpectRefused(trainer->ToHere({left}).status(), "programs");
  EXPECT_TRUE(Must(trainer->List("registrar")).empty());
}

TEST_F(RegistrarOnlyTest, NeitherByAClientOfTheUnaryService) {
  auto stub = v1::ParameterService::NewStub(
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  v1::OpenSessionRequest open;
  open.set_client("notebook");
  v1::OpenSessionReply session;
  grpc::ClientContext opening;
  ASSERT_TRUE(stub->OpenSession(&opening, open, &session).ok());
  v1::GetOrCreateParameterRequest create;
  create.mutable_header()->set_session(session.session());
  create.mutable_header()->set_sequence(1);
  create.set_name("w");
  create.set_dtype(v1::DATA_TYPE_F32);
  create.add_shape(2);
  create.set_initializer(v1::INITIALIZER_ZEROS);
  v1::GetOrCreateParameterReply created;
  grpc::ClientContext creating;
  const grpc::Status refused = stub->GetOrCreateParameter(&creating, create, &created);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("hosts no values"));
}

}  // namespace
}  // namespace psd::server
