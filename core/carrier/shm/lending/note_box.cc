#include "core/carrier/shm/lending/note_box.h"

namespace psd::carrier {

NoteBox::~NoteBox() {
  TakeAll();
}

void NoteBox::Leave(std::unique_ptr<Note> note) {
  Note* before = last_.load(std::memory_order_relaxed);
  Note* const raw = note.release();
  do {
    raw->next = before;
  } while (!last_.compare_exchange_weak(before, raw, std::memory_order_release,
                                        std::memory_order_relaxed));
  // From here on another thread may have taken the note. The thread that takes the one before it
  // takes this one, too.
  if (before == nullptr) bell_->Ring();
}

void NoteBox::Gone(uint64_t segment) {
  Leave(std::make_unique<Note>(Note{Note::Kind::kGone, segment}));
}

NoteBox::Notes NoteBox::TakeAll() {
  Notes notes;
  std::unique_ptr<Note> note(last_.exchange(nullptr, std::memory_order_acquire));
  while (note != nullptr) {
    (note->kind == Note::Kind::kGone ? notes.gone : notes.returned).push_back(note->id);
    note.reset(note->next);
  }
  return notes;
}

}  // namespace psd::carrier
