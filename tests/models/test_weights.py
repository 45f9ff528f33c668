"""The weights that ship with the package, and the training that made them."""

import pytest
import torch

from openneutron.diagnostics import OpenNeutronError
from openneutron.models import ZOO, build_model, find_model
from openneutron.models.data import Dataset, Split, as_frames, load_digits, load_stored
from openneutron.models.text import frames, load_texts, windows
from openneutron.models.train import accuracy, text_loss, train
from openneutron.models.weights import weights_path
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program


@pytest.mark.parametrize("name", ["cifarnet", "dscnn"])
def test_trained_models_know_the_digits(name):
    entry = find_model(name)
    assert entry.is_trained and weights_path(f"{name}_digits").stat().st_size < 500_000
    test = load_digits(entry.input_shapes[0], entry.classes).test
    assert accuracy(build_model(name, trained=True), test) > 0.985
    assert accuracy(build_model(name), Split(test.inputs[:60], test.labels[:60])) < 0.5


def test_the_stream_of_spoken_commands_is_the_window_frame_by_frame():
    window, stream = (build_model(name, trained=True) for name in ("keywords", "keywords_stream"))
    test = load_stored("speech_samples").test
    assert accuracy(window, test) > 0.8 and weights_path("keywords_speech").stat().st_size < 100_000
    assert weights_path("speech_samples").stat().st_size < 300_000
    frames = as_frames(Dataset(test, test), (1, 40, 1)).test.inputs[0]
    with torch.no_grad():
        for frame in frames:
            found = stream(frame)
        torch.testing.assert_close(found, window(test.inputs[:1]), rtol=0, atol=1e-4)


def test_the_language_model_has_learned_to_read_on():
    model, held_out = build_model("tiny_lm", trained=True), load_texts()[1]
    assert weights_path("tiny_lm_text").stat().st_size < 2_000_000
    assert text_loss(model, held_out[:2]) < 1.3  # nats a byte; 5.5 without training
    text = windows(held_out, 24)[0]
    with torch.no_grad():
        whole = model.over(text[None])[0]
        one_by_one = [model(*frame)[0, 0] for frame in frames(text)]
    torch.testing.assert_close(torch.stack(one_by_one), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.slow  # the model is quantized and run on many frames
def test_the_language_model_loses_little_in_int8():
    entry, held_out = find_model("tiny_lm"), load_texts()[1]
    sequences = entry.calibration_inputs()
    module = entry.build(trained=True)
    program = compile_model(module, sequences[0][0], calibration=sequences, accuracy="fast")
    assert len(program.partitions) == 1 and not program.rejected
    loaded, losses = load_program(program.pte), []
    for text in windows(held_out, 256)[::4]:
        loaded.reset()
        scores = torch.cat([torch.from_numpy(loaded.run(frame)[0][0]) for frame in frames(text)])
        losses.append(float(torch.nn.functional.cross_entropy(scores[:-1], text[1:])))
    texts = [bytes(text.tolist()) for text in windows(held_out, 256)[::4]]
    wanted = [text_loss(module, [text]) for text in texts]
    assert sum(losses) < 1.02 * sum(wanted)


def test_a_model_without_weights_says_how_to_make_them():
    assert not ZOO["gru"].is_trained
    with pytest.raises(OpenNeutronError, match=r"python -m openneutron\.models\.train gru"):
        build_model("gru", trained=True)


def test_training_is_repeatable():
    data = load_digits((1, 1, 49, 10)).train
    few, states = Split(data.inputs[:64], data.labels[:64]), []
    for _ in range(2):
        model = build_model("dscnn", softmax=False)
        train(model, few, epochs=1)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
