#include "server/services/health_watches.h"

#include "absl/strings/str_cat.h"

namespace psd::server {
namespace {

using Response = grpc::health::v1::HealthCheckResponse;

grpc::Status Stopping() {
  return {grpc::StatusCode::UNAVAILABLE, "the server stops; watch again when it is back"};
}

grpc::Status Cancelled() {
  return {grpc::StatusCode::CANCELLED, "the client has cancelled the watch or gone"};
}

grpc::Status CheckWatch(size_t watches, size_t service_bytes) {
  if (watches > HealthWatches::kMaxWatches) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat(HealthWatches::kMaxWatches,
                         " health watches are open, the most there may "
                         "be; end some, or ask with Check")};
  }
  if (service_bytes > HealthWatches::kMaxServiceBytes) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("a service name of ", service_bytes, " bytes; at most ",
                         HealthWatches::kMaxServiceBytes, " can be watched")};
  }
  return grpc::Status::OK;
}

}  // namespace

std::optional<ServingStatus> HealthWatches::Find(const std::string& service) const {
  MutexLock lock(mutex_);
  return FindLocked(service);
}

std::optional<ServingStatus> HealthWatches::FindLocked(const std::string& service) const {
  auto found = serving_.find(service);
  if (found == serving_.end()) return std::nullopt;
  return found->second ? Response::SERVING : Response::NOT_SERVING;
}

HealthWatches::Steps HealthWatches::Set(const std::string& service, bool serving) {
  MutexLock lock(mutex_);
  serving_[service] = serving;
  return NextOfAll();
}

void HealthWatches::Add(Watch watch) {
  MutexLock lock(mutex_);
  watches_[watch] = State();
}

void HealthWatches::Remove(Watch watch) {
  MutexLock lock(mutex_);
  watches_.erase(watch);
}

HealthWatches::Step HealthWatches::Begin(Watch watch, const std::string& service,
                                         const grpc::Status& refused) {
  MutexLock lock(mutex_);
  State& state = watches_.at(watch);
  state.under_way = false;
  grpc::Status status = refused;
  if (status.ok()) status = CheckWatch(watches_.size(), service.size());
  if (status.ok() && stopped_) status = Stopping();
  if (!status.ok()) {
    state.end = status;
  } else {
    state.service = service;
  }
  return Next(watch);
}

HealthWatches::Step HealthWatches::Completed(Watch watch, bool ok) {
  MutexLock lock(mutex_);
  State& state = watches_.at(watch);
  state.under_way = false;
  if (!ok && !state.end.has_value()) state.end = Cancelled();
  return Next(watch);
}

HealthWatches::Step HealthWatches::Done(Watch watch) {
  MutexLock lock(mutex_);
  State& state = watches_.at(watch);
  state.done = true;
  if (!state.end.has_value()) state.end = Cancelled();
  return Next(watch);
}

HealthWatches::Steps HealthWatches::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  return NextOfAll();
}

HealthWatches::Step HealthWatches::Next(Watch watch) {
  auto found = watches_.find(watch);
  Step step = NextOf(found->second);
  if (step.kind == Step::kForget) watches_.erase(found);
  return step;
}

HealthWatches::Step HealthWatches::NextOf(State& state) const {
  Step step;
  if (state.under_way) return step;
  if (state.finished) {
    if (state.done) step.kind = Step::kForget;
    return step;
  }
  step.state = FindLocked(state.service).value_or(Response::SERVICE_UNKNOWN);
  // The last state is told before a stop.
  if (stopped_ && state.told == step.state && !state.end.has_value()) state.end = Stopping();
  if (state.end.has_value()) {
    state.finished = state.under_way = true;
    step.kind = Step::kFinish;
    step.end = *state.end;
    return step;
  }
  if (state.told == step.state) return step;
  state.told = step.state;
  state.under_way = true;
  step.kind = Step::kWrite;
  return step;
}

// No step here is kForget: the event that made a watch finished and done has forgotten it.
HealthWatches::Steps HealthWatches::NextOfAll() {
  Steps steps;
  for (auto& [watch, state] : watches_) {
    Step step = NextOf(state);
    if (step.kind != Step::kNothing) steps.emplace_back(watch, std::move(step));
  }
  return steps;
}

}  // namespace psd::server
