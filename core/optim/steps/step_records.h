#pragma once

// What an owner remembers of the steps that have ended, so that none is applied twice. Pure.
//
// A trainer numbers its steps upwards and says with each step below which number all have ended for
// it: those it will never ask for again. Above that number the owner remembers every ended step of
// the trainer, within a bound; whatever is not above it is refused. So a step that is neither
// remembered nor refused was never applied.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "core/base/ids.h"

namespace psd::optim {

// Ended steps of one trainer that are remembered without its word that they have ended for it too.
inline constexpr size_t kRememberedSteps = 4096;
// Trainers whose sessions have ended and that are remembered, for messages of theirs that come
// late.
inline constexpr size_t kRememberedTrainers = 4096;

// Of one optimizer. A step's id carries the incarnation of its trainer, and so does a session.
// Thread-compatible.
class StepRecords {
 public:
  enum class Answer {
    kNew,           // never applied: it may be
    kEnded,         // it was applied
    kTooOld,        // the trainer has given it up, or it is too long ago to tell
    kSessionEnded,  // nothing of this session may be applied any more
  };
  Answer Find(GlobalId session, GlobalId step) const;

  // Every step of the trainer with a smaller number than `step_counter` has ended for it.
  void Acknowledge(Incarnation trainer, uint64_t step_counter);
  // The step was applied, for this session. Requires: Find says kNew.
  void End(GlobalId session, GlobalId step);
  // The session {incarnation, epoch} has ended for ever, and so have the trainer's earlier ones.
  // Its steps are forgotten, and older ones are refused. The notice may come late: steps of a later
  // session stay as they are.
  void EndSession(GlobalId session);

  // Whether anything is remembered of a trainer.
  bool Knows(Incarnation trainer) const { return trainers_.count(trainer) > 0; }
  // Ended steps that are remembered one by one.
  size_t remembered() const;

 private:
  struct Trainer {
    uint64_t floor = 0;                  // steps up to it have ended
    std::map<uint64_t, uint64_t> ended;  // above `floor`: the epochs of their sessions
    uint64_t last_epoch = 0;             // of a session that has stepped
    std::optional<uint64_t> ended_epoch;
    bool departed = false;    // its last session that stepped here has ended
    uint32_t departures = 0;  // how often the trainer is among departures_
  };
  static void Raise(Trainer& trainer, uint64_t floor);

  std::map<Incarnation, Trainer> trainers_;
  // Trainers in the order in which their sessions ended. A trainer that came back, and departed
  // again, is in it more than once, and is forgotten with its last departure.
  std::deque<Incarnation> departures_;
};

}  // namespace psd::optim
