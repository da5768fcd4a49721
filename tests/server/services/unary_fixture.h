#pragma once

// A daemon and a client of its unary service, without the Python side.

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "proto/psd/v1/service.grpc.pb.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"

namespace psd::server {

template <typename T>
std::string Bytes(const std::vector<T>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
}

class UnaryServiceTest : public ::testing::Test {
 protected:
  explicit UnaryServiceTest(ServerExtensions extensions = {},
                            std::vector<DeviceConfig> devices = {}) {
    DaemonConfig config;
    config.devices = std::move(devices);
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    config.memory_budget_bytes = 32 << 20;
    server_ = *Server::Create(config, std::move(extensions), NewNullLogger());
    stub_ = v1::ParameterService::NewStub(
        grpc::CreateChannel(*server_->Start(), grpc::InsecureChannelCredentials()));
    v1::OpenSessionRequest open;
    open.set_client("tester");
    v1::OpenSessionReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->OpenSession(&context, open, &reply).ok());
    session_ = reply.session();
  }

  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::ParameterService::Stub::*)(grpc::ClientContext*, const Request&,
                                                              Reply*);
  // Makes a call with a new sequence number.
  template <typename Request, typename Reply>
  grpc::Status Mutate(Method<Request, Reply> method, Request request, Reply* reply = nullptr) {
    request.mutable_header()->set_session(session_);
    request.mutable_header()->set_sequence(++sequence_);
    return Call(method, request, reply);
  }
  template <typename Request, typename Reply>
  grpc::Status Call(Method<Request, Reply> method, const Request& request, Reply* reply = nullptr) {
    Reply unwanted;
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, reply == nullptr ? &unwanted : reply);
  }

  static v1::GetOrCreateParameterRequest Parameter(const std::string& name,
                                                   const std::vector<int64_t>& shape) {
    v1::GetOrCreateParameterRequest request;
    request.set_name(name);
    request.set_dtype(v1::DATA_TYPE_F32);
    for (int64_t extent : shape) request.add_shape(extent);
    request.set_initializer(v1::INITIALIZER_ZEROS);
    return request;
  }
  void CreateW() { ASSERT_TRUE(Mutate(&Stub::GetOrCreateParameter, Parameter("w", {2, 2})).ok()); }
  uint64_t NewContext() {
    v1::NewContextReply reply;
    EXPECT_TRUE(Mutate(&Stub::NewContext, v1::NewContextRequest(), &reply).ok());
    return reply.context();
  }
  v1::PushGradientRequest Gradient(uint64_t context, const std::vector<float>& elements) {
    v1::PushGradientRequest request;
    request.set_context(context);
    request.set_parameter("w");
    request.mutable_gradient()->set_dtype(v1::DATA_TYPE_F32);
    request.mutable_gradient()->add_shape(2);
    request.mutable_gradient()->add_shape(2);
    request.mutable_gradient()->set_elements(Bytes(elements));
    return request;
  }
  v1::GetOrCreateOptimizerRequest Optimizer(const std::string& type) {
    v1::GetOrCreateOptimizerRequest request;
    request.set_name("main");
    request.set_type(type);
    request.add_parameters("w");
    return request;
  }
  // An optimizer with a learning rate of 1.
  v1::GetOrCreateOptimizerRequest PlainSgd() {
    v1::GetOrCreateOptimizerRequest request = Optimizer("sgd");
    request.add_option_names("lr");
    request.add_option_values(1);
    return request;
  }
  static v1::StepOptimizerRequest Step(uint64_t context) {
    v1::StepOptimizerRequest request;
    request.set_optimizer("main");
    request.set_context(context);
    return request;
  }
  void CloseSession() {
    v1::CloseSessionRequest close;
    close.set_session(session_);
    EXPECT_TRUE(Call(&Stub::CloseSession, close).ok());
  }
  std::vector<float> PullW() {
    v1::PullRequest request;
    request.add_names("w");
    v1::PullReply reply;
    EXPECT_TRUE(Call(&Stub::Pull, request, &reply).ok());
    std::vector<float> elements(4);
    std::memcpy(elements.data(), reply.tensors(0).elements().data(), 16);
    return elements;
  }
  size_t NamedValues() { return server_->runtime().store().stats().named; }

  using Stub = v1::ParameterService::Stub;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  uint64_t session_ = 0;
  uint64_t sequence_ = 0;
};

}  // namespace psd::server
