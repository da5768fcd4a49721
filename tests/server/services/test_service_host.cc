#include "tests/server/services/test_service_host.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/str_cat.h"
#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::server {

TestServiceHost::TestServiceHost(const std::function<void(grpc::ServerBuilder&)>& configure) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  configure(builder);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
  for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { Run(); });
}

TestServiceHost::~TestServiceHost() {
  if (!threads_.empty()) Shutdown(std::chrono::system_clock::now());
}

std::function<void()> TestServiceHost::CountCall() {
  MutexLock lock(mutex_);
  if (quiet_) return nullptr;
  ++calls_;
  return [this] { Gone(); };
}

void TestServiceHost::Gone() {
  MutexLock lock(mutex_);
  --calls_;
  changed_.NotifyAll();
}

std::shared_ptr<grpc::Channel> TestServiceHost::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
}

int TestServiceHost::calls() {
  MutexLock lock(mutex_);
  return calls_;
}

void TestServiceHost::AwaitCalls(int count) {
  MutexLock lock(mutex_);
  while (calls_ != count) changed_.Wait(mutex_);
}

void TestServiceHost::Shutdown(std::chrono::system_clock::time_point cancel_at) {
  server_->Shutdown(cancel_at);
  {
    MutexLock lock(mutex_);
    while (calls_ != 0) changed_.Wait(mutex_);
    quiet_ = true;
  }
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void TestServiceHost::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    PSD_TSAN_ACQUIRE(tag);
    static_cast<carrier::CompletionTag*>(tag)->Complete(ok);
  }
}

}  // namespace psd::server
