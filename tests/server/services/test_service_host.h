#pragma once

// A server with only the services under test, and a completion queue with two threads.

#include <grpcpp/channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/carrier/grpc/grpc_server_hook.h"

namespace psd::server {

class TestServiceHost final : public carrier::ServiceHost {
 public:
  explicit TestServiceHost(const std::function<void(grpc::ServerBuilder&)>& configure);
  // Shuts down.
  ~TestServiceHost();

  grpc::ServerCompletionQueue* queue() override { return queue_.get(); }
  std::function<void()> CountCall() override;

  // Opens a new connection.
  std::shared_ptr<grpc::Channel> Connect() const;
  int calls();
  void AwaitCalls(int count);
  // Shuts down, cancels the calls that are open at `cancel_at`, and returns when no call is
  // counted. May be called once.
  void Shutdown(std::chrono::system_clock::time_point cancel_at);
  // Shuts down without canceling any call.
  void ShutdownGently() { Shutdown(std::chrono::system_clock::time_point::max()); }

 private:
  void Run();
  void Gone();

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar changed_;
  int calls_ PSD_GUARDED_BY(mutex_) = 0;
  bool quiet_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::server
