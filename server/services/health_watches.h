#pragma once

// The health of services, and the Watch calls that are told of changes.

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "proto/grpc_health/health.pb.h"

namespace psd::server {

using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

// Decides the next step of each Watch call; the caller that gets a step must carry it out.
// Thread-safe.
//
// A watch is added when its call is requested, and begins when a client has come. It has at most
// one operation (the request, a write, the finish) under way. It is forgotten when it has finished
// and gRPC has reported that the call is done.
// Guarantees: A watch gets the present state and then later ones as fast as it takes them. It may
// miss states in between, but never the latest. After kForget no step names the watch.
class HealthWatches {
 public:
  static constexpr size_t kMaxWatches = 4096;
  static constexpr size_t kMaxServiceBytes = 1024;

  // Identifies a watch; the pointer is never followed.
  using Watch = void*;

  struct Step {
    enum Kind { kNothing, kWrite, kFinish, kForget };
    Kind kind = kNothing;
    ServingStatus state = {};  // to be written
    grpc::Status end;          // to finish with
  };
  using Steps = std::vector<std::pair<Watch, Step>>;

  // Returns nothing for a service that was never set.
  std::optional<ServingStatus> Find(const std::string& service) const;
  // The caller must carry out the returned steps.
  Steps Set(const std::string& service, bool serving);

  void Add(Watch watch);
  // Removes a watch whose request got no call.
  void Remove(Watch watch);
  // Begins a watch, unless its request is `refused`. The step is a write of the present state, or
  // the finish: with that error, or if there are more than kMaxWatches or the name `service` is too
  // long.
  Step Begin(Watch watch, const std::string& service,
             const grpc::Status& refused = grpc::Status::OK);
  // To be called when the watch's write or finish is over. If `ok` is false, nothing more can be
  // written.
  Step Completed(Watch watch, bool ok);
  // To be called when gRPC has ended the call: the client has cancelled or gone, or the finish is
  // sent. May be called before Begin, on another thread.
  Step Done(Watch watch);
  // Finishes all watches when they have told their last state, and those that begin later at once.
  Steps Stop();

 private:
  struct State {
    std::string service;
    std::optional<ServingStatus> told;
    std::optional<grpc::Status> end;  // set if the watch is to finish
    bool under_way = true;            // whether an operation is
    bool finished = false;
    bool done = false;
  };

  std::optional<ServingStatus> FindLocked(const std::string& service) const PSD_REQUIRES(mutex_);
  Step Next(Watch watch) PSD_REQUIRES(mutex_);
  Step NextOf(State& state) const PSD_REQUIRES(mutex_);
  Steps NextOfAll() PSD_REQUIRES(mutex_);

  mutable Mutex mutex_;  // leaf
  absl::flat_hash_map<std::string, bool> serving_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<Watch, State> watches_ PSD_GUARDED_BY(mutex_);
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::server
