// A daemon one of whose devices is lost: the values there are unavailable, health checks say so,
// and everything else goes on.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/device/emulated/emulated_device.h"
#include "core/runtime/runtime.h"
#include "proto/grpc_health/health.grpc.pb.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd::server {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps the errors that are logged.
class ErrorLogger : public Logger {
 public:
  bool Enabled(LogLevel level) const override { return level >= LogLevel::kError; }
  void Log(LogLevel level, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField>) override {
    if (!Enabled(level)) return;
    MutexLock lock(mutex_);
    errors_.push_back(absl::StrCat(event, " ", message));
  }
  std::vector<std::string> errors() const {
    MutexLock lock(mutex_);
    return errors_;
  }

 private:
  mutable Mutex mutex_;  // leaf
  std::vector<std::string> errors_ PSD_GUARDED_BY(mutex_);
};

DaemonConfig WithDevices() {
  DaemonConfig config;
  config.name = "owner0";
  config.listen = "127.0.0.1:0";
  config.devices = {{DeviceConfig::Kind::kEmulated, 0, size_t{4} << 20},
                    {DeviceConfig::Kind::kEmulated, 1, size_t{4} << 20}};
  return config;
}

HealthCheckRequest About(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return request;
}

class DeviceHealthTest : public ::testing::Test {
 protected:
  RRef Make(const std::string& name, const std::string& device, bool rows = false) {
    return Must(TryToMake(name, device, rows));
  }
  absl::StatusOr<RRef> TryToMake(const std::string& name, const std::string& device,
                                 bool rows = false) {
    CreateOptions options;
    options.requires_grad = true;
    options.rows = rows;
    options.device = device;
    return trainer_->GetOrCreate("owner0", name, Full({8, 4}, 2), options);
  }
  absl::Status Step(DistributedOptimizer& optimizer, const RRef& parameter) {
    Context context = Must(trainer_->NewContext());
    const Variable w = Must(trainer_->ToHere({parameter}, context))[0];
    EXPECT_TRUE(context.Backward({Sum(w)}).ok());
    return optimizer.Step(context);
  }
  void LoseTheFirst() {
    static_cast<EmulatedDevice&>(*server_->runtime().options().devices[0])
        .Lose("it fell off the bus");
  }

  // Returns what the health service answers about `service`; -1 for an error.
  int Check(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckResponse response;
    const grpc::Status status = health_->Check(&context, About(service), &response);
    return status.ok() ? response.status() : -1;
  }

  const std::shared_ptr<ErrorLogger> logger_ = std::make_shared<ErrorLogger>();
  const std::unique_ptr<Server> server_ = Must(Server::Create(WithDevices(), {}, logger_));
  const std::string address_ = Must(server_->Start());
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const std::unique_ptr<Health::Stub> health_ = Health::NewStub(channel_);
  const std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {{"owner0", address_}});
};

TEST_F(DeviceHealthTest, OnlyTheLostDeviceDoesNotServe) {
  grpc::ClientContext context;
  const auto watched = health_->Watch(&context, About("psd.device/emu:0"));
  HealthCheckResponse response;
  ASSERT_TRUE(watched->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  LoseTheFirst();
  ASSERT_TRUE(watched->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("psd.device/emu:0"), HealthCheckResponse::NOT_SERVING);
  for (const char* served : {"", "psd.v1.ParameterService", "psd.device/emu:1"})
    EXPECT_EQ(Check(served), HealthCheckResponse::SERVING) << served;
  EXPECT_EQ(Check("psd.device/emu:2"), -1) << "the daemon has no such device";
  EXPECT_THAT(logger_->errors(),
              ElementsAre(AllOf(HasSubstr("device_lost emu:0"), HasSubstr("fell off the bus"))));
  context.TryCancel();
}

TEST_F(DeviceHealthTest, NoDeviceServesWhileTheDaemonStops) {
  grpc::ClientContext context;
  const auto watched = health_->Watch(&context, About("psd.device/emu:1"));
  HealthCheckResponse response;
  ASSERT_TRUE(watched->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  // When this is answered, the write above is complete on the daemon's side, too.
  EXPECT_EQ(Check("psd.device/emu:1"), HealthCheckResponse::SERVING);
  server_->Shutdown(absl::ZeroDuration());
  ASSERT_TRUE(watched->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(DeviceHealthTest, ValuesOfTheLostDeviceAreUnavailableAndOthersAreServed) {
  const RRef w = Make("w", "emu:0"), table = Make("table", "emu:0", /*rows=*/true);
  const auto lost_optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{1}, {w}));
  Context context = Must(trainer_->NewContext());
  ASSERT_TRUE(context.Backward({Sum(Must(trainer_->ToHere({w}, context))[0])}).ok());
  std::vector<RRef> others = {Make("b", "cpu"), Make("c", "emu:1")};
  LoseTheFirst();

  const Tensor ids = Tensor::Of<int64_t>({2}, {1, 3});
  const std::pair<const char*, absl::Status> refused[] = {
      {"pull", trainer_->Pull({w}).status()},
      {"pull with others", trainer_->Pull({others[0], w}).status()},
      {"lookup", trainer_->LookUpRows({{table, ids}}).status()},
      {"assign", trainer_->Assign(w, *Tensor::Zeros({8, 4}, DType::kF32)).status()},
      {"step", lost_optimizer->Step(context)},
      {"new optimizer", DistributedOptimizer::Create(*trainer_, "adam", Adam{1}, {w}).status()},
      {"new parameter", TryToMake("new", "emu:0").status()},
      {"new table", TryToMake("new_table", "emu:0", /*rows=*/true).status()},
  };
  for (const auto& [what, status] : refused) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("emu:0 is lost")) << what;
  }

  others.push_back(Make("d", "emu:1"));
  others.push_back(Make("e", "cpu"));
  const auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{1}, others));
  for (const RRef& each : others) {
    EXPECT_TRUE(Step(*optimizer, each).ok());
    EXPECT_EQ(Read(*trainer_, each), std::vector<float>(32, 1));
  }
}

TEST_F(DeviceHealthTest, ClientsOfTheUnaryServiceLearnOfTheLostDevice) {
  Make("w", "emu:0");
  Make("b", "cpu");
  LoseTheFirst();
  const auto stub = v1::ParameterService::NewStub(channel_);
  const auto pull = [&](const char* name) {
    v1::PullRequest request;
    request.add_names(name);
    v1::PullReply reply;
    grpc::ClientContext context;
    return stub->Pull(&context, request, &reply);
  };
  const grpc::Status lost = pull("w");
  EXPECT_EQ(lost.error_code(), grpc::StatusCode::UNAVAILABLE) << lost.error_message();
  EXPECT_THAT(lost.error_message(), HasSubstr("emu:0 is lost"));
  EXPECT_TRUE(pull("b").ok());
}

}  // namespace
}  // namespace psd::server
