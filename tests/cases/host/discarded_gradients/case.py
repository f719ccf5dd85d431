"""Backward passes whose gradients another optimizer's zero_grad() deletes, and programs that only look like it."""

from gpulab.run import DiscardedGradients
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped


def training(*discarded):
    """Steps of 100 ms of one long operator and an optimizer."""

    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 95),
            event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 97, 1),
        ]

    return run_of(stepped(step), discarded_gradients=discarded)


def gradients(step_frac, **more):
    names = {"model": "generator", "optimizer": "optimizer_D", "location": "cell line 30"}
    return DiscardedGradients(passes=5, step_frac=step_frac, **names | more)


def provoked_by_a_discriminator_whose_loss_reaches_the_generator():
    return training(gradients(0.25))


def provoked_by_two_critics_that_share_an_encoder():
    return training(gradients(0.05, model="encoder"), gradients(0.04, model="encoder", optimizer="second"))


def provoked_by_models_without_variables():
    return training(gradients(0.2, model=None, optimizer=None, location=None))


def provoked_by_a_generator_whose_loss_computes_gradients_of_weights():
    return training(gradients(0.3, model="discriminator", optimizer="optimizer_G", passed_through=True))


def provoked_by_such_a_loss_and_two_models_without_a_variable():
    return training(gradients(0.3, model=None, owner="optim_d", optimizer="optim_g", passed_through=True))


def spared_where_nothing_is_deleted():
    return training()


def spared_where_little_time_goes_away():
    return training(gradients(0.03))


def spared_where_the_share_is_unknown():
    return training(gradients(None))


def spared_where_a_damaged_file_has_a_negative_share():
    return training(gradients(-0.5))
