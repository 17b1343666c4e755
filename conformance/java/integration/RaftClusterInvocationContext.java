package org.apache.kafka.common.test.junit;

import java.util.List;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

/** Stands in for Kafka's class of this name, which starts Kafka's brokers: runs a test on oncelog's instead. */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String name;
    private final ClusterConfig config;
    private final boolean isCombined;

    public RaftClusterInvocationContext(String name, ClusterConfig config, boolean isCombined) {
        this.name = name;
        this.config = config;
        this.isCombined = isCombined;
    }

    @Override
    public String getDisplayName(int invocationIndex) {
        return name;
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        if (isCombined) { // brokers that are controllers, too: all of oncelog's are
            return List.of((ExecutionCondition) context -> ConditionEvaluationResult.disabled("it runs once"));
        }
        OncelogInstance instance = new OncelogInstance(config);
        return List.of(
            (BeforeEachCallback) context -> {
                if (config.isAutoStart()) {
                    instance.start();
                }
            },
            (AfterEachCallback) context -> instance.release(),
            new ClusterInstanceParameterResolver(instance));
    }
}
