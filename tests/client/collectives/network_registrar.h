#pragma once

// A registrar without values, over a carrier of the test's choice.

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/base/log.h"
#include "core/carrier/carrier.h"
#include "core/rpc/session_options.h"
#include "core/runtime/runtime.h"
#include "server/registrar/registrar_service.h"
#include "tests/client/test_world.h"

namespace psd {

// A daemon with --registrar_only, without the daemon.
class NetworkRegistrar {
 public:
  NetworkRegistrar(const std::string& name, const std::string& listen,
                   std::shared_ptr<carrier::Carrier> carrier, const rpc::SessionOptions& session) {
    worker::RuntimeOptions options;
    options.name = name;
    options.listen = listen;
    options.registrar = name;
    options.carrier = std::move(carrier);
    options.session = session;
    options.logger = logger_;
    runtime_ = Must(worker::Runtime::Create(std::move(options)));
    service_ =
        std::make_unique<server::RegistrarService>(runtime_->agent(), runtime_->timers(), *logger_);
    address_ = Must(runtime_->Start());
  }
  ~NetworkRegistrar() { runtime_->Shutdown(absl::ZeroDuration()); }
  NetworkRegistrar(const NetworkRegistrar&) = delete;
  NetworkRegistrar& operator=(const NetworkRegistrar&) = delete;

  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<Logger> logger_ = NewNullLogger();  // shared with the runtime
  std::unique_ptr<server::RegistrarService> service_;       // lives longer than the runtime
  std::unique_ptr<worker::Runtime> runtime_;
  std::string address_;
};

}  // namespace psd
