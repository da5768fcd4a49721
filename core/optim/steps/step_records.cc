#include "core/optim/steps/step_records.h"

#include <algorithm>

namespace psd::optim {

StepRecords::Answer StepRecords::Find(GlobalId session, GlobalId step) const {
  if (HasEnded(session)) return Answer::kSessionEnded;
  const auto place = trainers_.find(step.incarnation);
  if (place == trainers_.end()) return Answer::kNew;
  if (step.counter <= place->second.floor) return Answer::kTooOld;
  return place->second.ended.count(step.counter) > 0 ? Answer::kEnded : Answer::kNew;
}

void StepRecords::Raise(Trainer& trainer, uint64_t floor) {
  trainer.floor = std::max(trainer.floor, floor);
  trainer.ended.erase(trainer.ended.begin(), trainer.ended.upper_bound(trainer.floor));
}

void StepRecords::Acknowledge(Incarnation trainer, uint64_t step_counter) {
  if (step_counter > 0) Raise(trainers_[trainer], step_counter - 1);
}

void StepRecords::End(GlobalId session, GlobalId step) {
  Meet(session);
  Trainer& trainer = trainers_[step.incarnation];
  trainer.ended.emplace(step.counter, session.counter);
  if (trainer.ended.size() > kRememberedSteps) Raise(trainer, trainer.ended.begin()->first);
}

void StepRecords::End(GlobalId step) {
  const std::optional<GlobalId> session = LastSession(step.incarnation);
  if (session.has_value() && Find(*session, step) == Answer::kNew) End(*session, step);
}

void StepRecords::Meet(GlobalId session) {
  Trainer& trainer = trainers_[session.incarnation];
  if (trainer.ended_epoch.has_value() && session.counter <= *trainer.ended_epoch) return;
  trainer.departed = false;
  trainer.last_epoch = std::max(trainer.last_epoch.value_or(0), session.counter);
}

void StepRecords::EndSession(GlobalId session) {
  Trainer& trainer = trainers_[session.incarnation];
  trainer.ended_epoch = std::max(trainer.ended_epoch.value_or(0), session.counter);
  const auto last =
      std::find_if(trainer.ended.rbegin(), trainer.ended.rend(),
                   [session](const auto& ended) { return ended.second <= session.counter; });
  if (last != trainer.ended.rend()) Raise(trainer, last->first);
  if (trainer.last_epoch.value_or(0) > session.counter) return;  // the trainer has come back
  trainer.departed = true;
  ++trainer.departures;
  departures_.push_back(session.incarnation);
  if (departures_.size() <= kRememberedTrainers) return;
  const auto oldest = trainers_.find(departures_.front());
  departures_.pop_front();
  const bool is_last = --oldest->second.departures == 0;
  if (is_last && oldest->second.departed) trainers_.erase(oldest);
}

bool StepRecords::HasEnded(GlobalId session) const {
  const auto place = trainers_.find(session.incarnation);
  return place != trainers_.end() && place->second.ended_epoch.has_value() &&
         session.counter <= *place->second.ended_epoch;
}

bool StepRecords::Expects(GlobalId step) const {
  const std::optional<GlobalId> session = LastSession(step.incarnation);
  return session.has_value() && Find(*session, step) == Answer::kNew;
}

std::optional<GlobalId> StepRecords::LastSession(Incarnation trainer) const {
  const auto place = trainers_.find(trainer);
  if (place == trainers_.end() || !place->second.last_epoch.has_value()) return std::nullopt;
  return GlobalId{trainer, *place->second.last_epoch};
}

size_t StepRecords::remembered() const {
  size_t count = 0;
  for (const auto& [incarnation, trainer] : trainers_) count += trainer.ended.size();
  return count;
}

}  // namespace psd::optim
