// The reflection service as tools see it. None of its streams stays open when the client is gone.

#include "server/services/reflection_service.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "proto/grpc_reflection/reflection.grpc.pb.h"
#include "proto/psd/v1/service.pb.h"
#include "tests/server/services/extension.pb.h"
#include "tests/server/services/test_service_host.h"

namespace psd::server {
namespace {

using google::protobuf::FileDescriptorProto;
using grpc::StatusCode;
using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kServiceFile[] = "proto/psd/v1/service.proto";
constexpr char kStatusFile[] = "proto/psd/v1/status.proto";
constexpr char kExtensionFile[] = "tests/server/services/extension.proto";

// The client side of a stream.
class Asker {
 public:
  explicit Asker(const TestServiceHost& host)
      : stub_(ServerReflection::NewStub(host.Connect())),
        stream_(stub_->ServerReflectionInfo(&context_)) {}

  ServerReflectionResponse Ask(const ServerReflectionRequest& request) {
    ServerReflectionResponse response;
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  bool Send(const ServerReflectionRequest& request) { return stream_->Write(request); }
  void Cancel() { context_.TryCancel(); }
  grpc::Status HalfCloseAndFinish() {
    stream_->WritesDone();
    return stream_->Finish();
  }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<ServerReflection::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>>
      stream_;
};

std::vector<std::string> FileNames(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

void ExpectNotFound(const ServerReflectionResponse& response, const std::string& name) {
  EXPECT_EQ(response.error_response().error_code(), StatusCode::NOT_FOUND)
      << response.DebugString();
  EXPECT_THAT(response.error_response().error_message(), HasSubstr("'" + name + "'"));
}

class ReflectionServiceTest : public ::testing::Test {
 protected:
  ReflectionServiceTest()
      : reflection_({"psd.v1.ParameterService", "grpc.health.v1.Health"}),
        host_([this](grpc::ServerBuilder& b) { reflection_.Register(b); }) {
    // These lines make the linker keep the files.
    psd::v1::StepOptimizerRequest::descriptor();
    psd::testing::Extending::descriptor();
    reflection_.Serve(host_);
    idle_calls_ = host_.calls();
  }

  ServerReflectionResponse Ask(const ServerReflectionRequest& request) {
    Asker asker(host_);
    ServerReflectionResponse response = asker.Ask(request);
    EXPECT_TRUE(asker.HalfCloseAndFinish().ok());
    return response;
  }
  ServerReflectionResponse AskForSymbol(const std::string& symbol) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(symbol);
    return Ask(request);
  }
  ServerReflectionResponse AskForFile(const std::string& name) {
    ServerReflectionRequest request;
    request.set_file_by_filename(name);
    return Ask(request);
  }
  ServerReflectionResponse AskForExtension(const std::string& type, int number) {
    ServerReflectionRequest request;
    request.mutable_file_containing_extension()->set_containing_type(type);
    request.mutable_file_containing_extension()->set_extension_number(number);
    return Ask(request);
  }
  ServerReflectionResponse AskForExtensionNumbers(const std::string& type) {
    ServerReflectionRequest request;
    request.set_all_extension_numbers_of_type(type);
    return Ask(request);
  }

  ReflectionService reflection_;
  TestServiceHost host_;
  int idle_calls_ = 0;  // calls that the server has requested and that have no client yet
};

TEST_F(ReflectionServiceTest, ListsItsServices) {
  ServerReflectionRequest request;
  request.set_host("here");
  request.set_list_services("");
  ServerReflectionResponse response = Ask(request);
  EXPECT_EQ(response.valid_host(), "here");
  EXPECT_EQ(response.original_request().message_request_case(),
            ServerReflectionRequest::kListServices);
  const auto& services = response.list_services_response().service();
  ASSERT_EQ(services.size(), 2);
  EXPECT_EQ(services[0].name(), "psd.v1.ParameterService");
  EXPECT_EQ(services[1].name(), "grpc.health.v1.Health");
  host_.AwaitCalls(idle_calls_);
}

TEST_F(ReflectionServiceTest, AFileComesWithWhatItImports) {
  EXPECT_THAT(FileNames(AskForSymbol("psd.v1.ParameterService")),
              ElementsAre(kServiceFile, kStatusFile));
  EXPECT_THAT(FileNames(AskForSymbol("psd.v1.ParameterService.Pull")),
              ElementsAre(kServiceFile, kStatusFile));
  EXPECT_THAT(FileNames(AskForSymbol("psd.v1.TensorData")), ElementsAre(kServiceFile, kStatusFile));
  EXPECT_THAT(FileNames(AskForFile(kStatusFile)), ElementsAre(kStatusFile));
}

TEST_F(ReflectionServiceTest, OneStreamAnswersManyRequestsInTheirOrder) {
  Asker asker(host_);
  ServerReflectionRequest request;
  for (const char* file : {kStatusFile, kServiceFile, kStatusFile}) {
    request.set_file_by_filename(file);
    EXPECT_EQ(FileNames(asker.Ask(request)).front(), file);
  }
  EXPECT_TRUE(asker.HalfCloseAndFinish().ok());
  host_.AwaitCalls(idle_calls_);
}

TEST_F(ReflectionServiceTest, WhatIsUnknownIsNamed) {
  ExpectNotFound(AskForSymbol("no.such.Symbol"), "no.such.Symbol");
  ExpectNotFound(AskForSymbol(""), "");
  ExpectNotFound(AskForSymbol("...."), "....");
  ExpectNotFound(AskForFile("/etc/passwd"), "/etc/passwd");
  ExpectNotFound(AskForExtension("no.such.Type", 1), "no.such.Type");
  ExpectNotFound(AskForExtension("psd.v1.TensorData", -1), "psd.v1.TensorData");
  ExpectNotFound(AskForExtensionNumbers("no.such.Type"), "no.such.Type");
}

TEST_F(ReflectionServiceTest, ExtensionsAreFoundByTheirTypeAndNumber) {
  const std::string type = "google.protobuf.FieldOptions";
  EXPECT_THAT(FileNames(AskForExtension(type, 50001)),
              ElementsAre(kExtensionFile, "google/protobuf/descriptor.proto"));
  ExpectNotFound(AskForExtension(type, 50003), type);
  ServerReflectionResponse response = AskForExtensionNumbers(type);
  const auto& numbers = response.all_extension_numbers_response();
  EXPECT_EQ(numbers.base_type_name(), type);
  EXPECT_THAT(numbers.extension_number(), ElementsAre(50001, 50002));
}

TEST_F(ReflectionServiceTest, ATypeWithoutExtensionsHasNoNumbers) {
  ServerReflectionResponse response = AskForExtensionNumbers("psd.v1.TensorData");
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(), "psd.v1.TensorData");
  EXPECT_EQ(response.all_extension_numbers_response().extension_number_size(), 0);
}

TEST_F(ReflectionServiceTest, AHugeNameIsAnsweredBriefly) {
  ServerReflectionResponse response = AskForSymbol(std::string(1 << 20, 'x'));
  EXPECT_EQ(response.error_response().error_code(), StatusCode::NOT_FOUND);
  EXPECT_LT(response.error_response().error_message().size(), 2000u);
}

TEST_F(ReflectionServiceTest, ARequestThatWouldTakeMuchMemoryIsNotParsed) {
  ServerReflectionRequest request;
  for (int i = 0; i < 1'000'000; ++i)
    request.GetReflection()->MutableUnknownFields(&request)->AddVarint(100, 1);
  Asker asker(host_);
  EXPECT_TRUE(asker.Send(request));
  const grpc::Status status = asker.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
}

TEST_F(ReflectionServiceTest, ARequestForNothingIsRefused) {
  EXPECT_EQ(Ask(ServerReflectionRequest()).error_response().error_code(),
            StatusCode::INVALID_ARGUMENT);
}

TEST_F(ReflectionServiceTest, AStreamThatIsCancelledIsGone) {
  Asker asker(host_);
  ServerReflectionRequest request;
  request.set_list_services("");
  asker.Ask(request);
  host_.AwaitCalls(idle_calls_ + 1);
  asker.Cancel();
  EXPECT_EQ(asker.Finish().error_code(), StatusCode::CANCELLED);
  host_.AwaitCalls(idle_calls_);
}

TEST_F(ReflectionServiceTest, AShutdownLeavesNoStream) {
  Asker asker(host_);
  ServerReflectionRequest request;
  request.set_list_services("");
  asker.Ask(request);
  host_.Shutdown(std::chrono::system_clock::now());
  EXPECT_EQ(host_.calls(), 0);
  EXPECT_FALSE(asker.Finish().ok());
}

}  // namespace
}  // namespace psd::server
